"""Convolutions over time, and what bends samples between them: with torch, and with the compiled library.

Tensors are [batch, channels, time]; the input of a convolution has its past in front, so that it makes `time - past` outputs,
past = (kernel - 1) * dilation. A chain of them takes and gives its pasts as `modeling.streaming` has states.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from omnistage.modeling.kernels.chosen import chosen_ops
from omnistage.modeling.kernels.frames import KernelFrames, TorchFrames
from omnistage.modeling.kernels.native import KernelOps
from omnistage.modeling.kernels.structs import INT, POINTER, address, numbers

Convolve = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
"""`convolve(held, added)`: [batch, in, past + time] -> [batch, out, time], plus `added` where that is not None."""


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """Snake, and a convolution of what it makes. `past`: how many of that convolution's inputs later outputs need. `adds`: to its
    output the input of the link before."""

    alpha: torch.Tensor
    by_beta: torch.Tensor
    convolve: Convolve
    past: int
    adds: bool = False


Chained = Callable[[torch.Tensor, Sequence[torch.Tensor]], tuple[torch.Tensor, tuple[torch.Tensor, ...]]]
"""`chained(x, state)`: what becomes of `x` in all links, and the state behind it: of each link that has a past, the last `past`
inputs of its convolution, bent already, or as many as there are."""

_PLACE = (POINTER, INT, INT)
"""Address of a tensor, and how far apart sequences and channels lie in it."""


class TorchWaves:
    """Computes with torch, in any dtype."""

    name = "torch"

    def __init__(self) -> None:
        self.frames = TorchFrames()
        """What a decoder computes with before it makes waves."""

    def convolution(self, weight: torch.Tensor, bias: torch.Tensor, dilation: int = 1) -> Convolve:
        """`weight` [out, in, kernel], `bias` [out]; both are copied. In float32 one product of matrices per tap, which takes
        half of the time of torch's convolution where channels are few and steps many; narrower sums would be rounded at every
        tap."""
        return TapsConvolution(weight, bias, dilation) if weight.element_size() >= 4 else _plain(weight, bias, dilation)

    def upsampling(self, weight: torch.Tensor, bias: torch.Tensor) -> Convolve:
        """`weight` [in, out, 2 * stride], `bias` [out]: a transposed convolution of kernels of two strides, but for its first
        `stride` outputs and its last: [batch, in, 1 + time] -> [batch, out, time * stride]. An output is made of two neighbours.
        Nothing can be added to it."""
        outs, stride = weight.shape[1], weight.shape[2] // 2
        convolve = self.convolution(*_as_channels(weight, bias))

        def upsample(held: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
            assert added is None
            made = convolve(held, None)
            by_step = made.view(len(made), outs, stride, made.shape[2]).transpose(2, 3)
            return by_step.reshape(len(made), outs, made.shape[2] * stride)

        return upsample

    def snake(self, x: torch.Tensor, alpha: torch.Tensor, by_beta: torch.Tensor, out: torch.Tensor) -> None:
        """x + sin(alpha x)^2 by_beta, written to `out`, which is not x; `alpha` and `by_beta` [channels]."""
        bent = torch.mul(x, alpha[:, None], out=out).sin_()
        bent.mul_(bent)
        torch.addcmul(x, bent, by_beta[:, None], out=bent)

    def chain(self, links: Sequence[Link]) -> Chained:
        """All links, one behind another."""

        def chained(x: torch.Tensor, state: Sequence[torch.Tensor]) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
            pasts, kept, before = iter(state), [], None
            for link in links:
                held = self._bent(link, next(pasts) if link.past else x[..., :0], x)
                if link.past:
                    kept.append(held[..., max(0, held.shape[-1] - link.past) :].clone())
                before, x = x, link.convolve(held, before if link.adds else None)
            return x, tuple(kept)

        return chained

    def _bent(self, link: Link, past: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """`past` as it is, and behind it what becomes of `x`: [batch, channels, past + time]."""
        start = past.shape[-1]
        held = x.new_empty(*x.shape[:-1], start + x.shape[-1])
        held[..., :start] = past
        self.snake(x, link.alpha, link.by_beta, held[..., start:])
        return held


class KernelWaves(TorchWaves):
    """Computes with a compiled library, in float32 on a CPU. Raises OSError where it cannot be loaded."""

    name = "kernels"

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self.frames = KernelFrames(library)
        self._convolve = library.convolve_f32
        self._convolve.argtypes = [POINTER, *_PLACE, *_PLACE, *_PLACE, INT, INT, INT]
        self._snake = library.snake_f32
        self._snake.argtypes = [*_PLACE, *_PLACE, POINTER, POINTER, INT, INT, INT, INT]
        self._chain = library.chain_waves_f32
        self._chain.argtypes = [POINTER, POINTER, INT, *_PLACE, POINTER, INT, INT, INT]
        for function in (self._convolve, self._snake, self._chain):
            function.restype = None

    def convolution(self, weight: torch.Tensor, bias: torch.Tensor, dilation: int = 1) -> Convolve:
        if weight.dtype is not torch.float32:
            return super().convolution(weight, bias, dilation)
        return KernelConvolution(self._convolve, weight, bias, dilation)

    def upsampling(self, weight: torch.Tensor, bias: torch.Tensor) -> Convolve:
        if weight.dtype is not torch.float32:
            return super().upsampling(weight, bias)
        return KernelConvolution(self._convolve, *_as_channels(weight, bias), spread=weight.shape[2] // 2)

    def snake(self, x: torch.Tensor, alpha: torch.Tensor, by_beta: torch.Tensor, out: torch.Tensor) -> None:
        if not _readable(x, out) or not alpha.is_contiguous() or not by_beta.is_contiguous():
            return super().snake(x, alpha, by_beta, out)
        assert x.shape == out.shape and alpha.shape == by_beta.shape == x.shape[1:2]
        assert alpha.dtype is by_beta.dtype is torch.float32
        threads = torch.get_num_threads()
        self._snake(*_place(x), *_place(out), alpha.data_ptr(), by_beta.data_ptr(), *x.shape, threads)
        return None

    def chain(self, links: Sequence[Link]) -> Chained:
        bound = [_Link.of(link) for link in links]
        whole = [link for link in bound if link is not None]
        return KernelChain(self._chain, whole) if len(whole) == len(bound) else super().chain(links)


def chosen_waves() -> TorchWaves:
    """The library if it is there and wanted, else torch; starts the compilation of what is absent, and does not wait for it."""
    ops = chosen_ops(torch.device("cpu"))
    return KernelWaves(ops.path) if isinstance(ops, KernelOps) else TorchWaves()


def _as_channels(weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The steps that an input of a transposed convolution becomes, as channels beside each other: [out * stride, in, 2] and
    [out * stride]."""
    stride = weight.shape[2] // 2
    now, before = torch.split(weight.permute(1, 2, 0), stride, dim=1)  # [out, stride, in]
    return torch.stack((before, now), dim=-1).flatten(0, 1), bias.repeat_interleave(stride)


class TapsConvolution:
    """A convolution as products of matrices."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor, dilation: int) -> None:
        self._taps = list(weight.permute(2, 0, 1).clone(memory_format=torch.contiguous_format))
        self._bias = bias[:, None].clone()
        self._dilation = dilation

    def __call__(self, held: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        batch, time = held.shape[0], max(0, held.shape[-1] - (len(self._taps) - 1) * self._dilation)
        first, *others = self._taps
        base = self._bias if added is None else added + self._bias
        out = torch.baddbmm(base, first.expand(batch, -1, -1), held[..., :time])
        for start, tap in enumerate(others, start=1):
            out.baddbmm_(tap.expand(batch, -1, -1), held[..., start * self._dilation :][..., :time])
        return out


def _plain(weight: torch.Tensor, bias: torch.Tensor, dilation: int) -> Convolve:
    weight, bias = weight.clone(), bias.clone()
    past = (weight.shape[2] - 1) * dilation

    def convolve(held: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        if held.shape[-1] <= past:
            return held.new_empty(held.shape[0], weight.shape[0], 0)
        out = F.conv1d(held, weight, bias, dilation=dilation)
        return out if added is None else out.add_(added)

    return convolve


class _Convolution(ctypes.Structure):
    _fields_ = [
        ("weights", POINTER),
        ("bias", POINTER),
        *((name, INT) for name in ("ins", "outs", "kernel", "dilation", "spread")),
    ]


TOGETHER = 8
"""Outputs that the library computes at once."""


class KernelConvolution:
    """A convolution by the library, its weights laid out as that reads them."""

    def __init__(
        self,
        function: Callable[..., None],
        weight: torch.Tensor,
        bias: torch.Tensor,
        dilation: int = 1,
        spread: int = 1,
    ) -> None:
        outs, ins, kernel = weight.shape
        assert bias.shape == (outs,) and bias.dtype is weight.dtype is torch.float32
        self._function = function
        self._weights = torch.cat([_beside(group).flatten() for group in torch.split(weight, TOGETHER)])
        self._bias = torch.cat([_beside(group[:, None, None]).flatten() for group in torch.split(bias, TOGETHER)])
        addresses = self._weights.data_ptr(), self._bias.data_ptr()
        self.bound = _Convolution(*addresses, ins, outs, kernel, dilation, spread)
        self._at = ctypes.byref(self.bound)
        self._ins, self._outs, self._past, self._spread = ins, outs // spread, (kernel - 1) * dilation, spread

    def __call__(self, held: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        batch, ins, steps = held.shape
        assert ins == self._ins
        held = held if _readable(held) else held.contiguous()
        time = max(0, steps - self._past)
        out = torch.empty((batch, self._outs, time * self._spread), dtype=torch.float32)
        plus: tuple[int | None, int, int] = (None, 0, 0)
        if added is not None:
            assert added.shape == out.shape and self._spread == 1
            added = added if _readable(added) else added.contiguous()
            plus = _place(added)
        self._function(self._at, *_place(held), *plus, *_place(out), batch, time, torch.get_num_threads())
        return out


class _Link(ctypes.Structure):
    _fields_ = [("alpha", POINTER), ("by_beta", POINTER), ("by", _Convolution), ("adds", INT)]

    @classmethod
    def of(cls, link: Link) -> _Link | None:
        """With the tensors that it points to; None where the library does not compute them."""
        bends, by = (link.alpha, link.by_beta), link.convolve
        if not isinstance(by, KernelConvolution) or any(one.dtype is not torch.float32 for one in bends):
            return None
        assert link.alpha.shape == link.by_beta.shape == (by.bound.ins,)
        assert link.past == (by.bound.kernel - 1) * by.bound.dilation
        assert link.alpha.is_contiguous() and link.by_beta.is_contiguous()
        made = cls(link.alpha.data_ptr(), link.by_beta.data_ptr(), by.bound, link.adds)
        made.kept = link
        return made


class KernelChain:
    """A chain by one call of the library: where steps are few each call costs more than its arithmetic."""

    def __init__(self, function: Callable[..., None], links: Sequence[_Link]) -> None:
        self._function = function
        self._links = (_Link * len(links))(*links)
        self._kept = list(links)
        convolutions = [link.by for link in links]
        self._sizes = [(by.ins, (by.kernel - 1) * by.dilation, by.spread) for by in convolutions]
        self._outs = convolutions[-1].outs // convolutions[-1].spread

    def __call__(self, x: torch.Tensor, state: Sequence[torch.Tensor]) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        x = x if _readable(x) else x.contiguous()
        batch, _, time = x.shape
        assert x.shape[1] == self._sizes[0][0]
        owned, kept, places, steps = [past.contiguous() for past in state], [], [], time
        pasts = iter(owned)
        for ins, past, spread in self._sizes:
            if past:
                before = next(pasts)
                steps += before.shape[2]
                assert before.shape[:2] == (batch, ins) and before.shape[2] <= past
                end = before.new_empty(batch, ins, min(past, steps))
                places += [before.data_ptr(), before.shape[2], end.data_ptr(), end.shape[2]]
                kept.append(end)
            else:
                places += [0, 0, 0, 0]
            steps = max(0, steps - past) * spread
        out = x.new_empty(batch, self._outs, steps)
        held = numbers(places)
        at = ctypes.addressof(self._links), address(held), len(self._sizes)
        self._function(*at, *_place(x), out.data_ptr(), batch, time, torch.get_num_threads())
        return out, tuple(kept)


def _beside(group: torch.Tensor) -> torch.Tensor:
    """[outputs, in, kernel] -> [in, kernel, 1, 2, 4 or 8]: filled up with zeros."""
    width = next(size for size in (1, 2, 4, TOGETHER) if size >= len(group))
    return F.pad(group.permute(1, 2, 0), (0, width - len(group)))


def _readable(*tensors: torch.Tensor) -> bool:
    """Float32, with steps of time side by side."""
    return all(tensor.dtype is torch.float32 and tensor.stride(2) == 1 for tensor in tensors)


def _place(tensor: torch.Tensor) -> tuple[int, int, int]:
    return tensor.data_ptr(), tensor.stride(0), tensor.stride(1)
