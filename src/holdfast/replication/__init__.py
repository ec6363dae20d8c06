"""How a group of brokers keeps its promises while one of them is killed."""
