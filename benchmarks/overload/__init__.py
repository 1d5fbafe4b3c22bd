"""A shared queue under trouble: how long the other tenants wait, with each measure off and on."""
