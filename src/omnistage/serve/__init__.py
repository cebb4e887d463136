"""HTTP face: protocol, routes and rendering."""
