package others

// clearStep is how many names of the catalogue are withdrawn at once.
const clearStep = 1024
