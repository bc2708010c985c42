package residency

// RemoteTier is the word for other ranks' memory in statistics.
const RemoteTier = "remote"
