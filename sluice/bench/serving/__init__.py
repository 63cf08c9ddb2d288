"""How much the router costs: the app beside the same model behind the shortest app there is."""
