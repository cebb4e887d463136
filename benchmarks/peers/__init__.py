"""The peers that figures are compared with, each in its best form. Nothing of ours is used in here."""
