"""Look at a network: from its name and a folder of photographs to a page that answers clicks."""
