"""What each page shows: readings of the cluster, and the JSON made of them."""
