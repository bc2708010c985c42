package inject

// Step is a step of a load.
type Step string

// The steps, in the order in which a load goes through them.
const (
	Lookup     Step = "lookup"     // the key's name is looked for
	Pin        Step = "pin"        // its block is pinned in memory
	Remote     Step = "remote"     // or read from another rank's memory
	Segment    Step = "segment"    // or read from a segment
	Copy       Step = "copy"       // it is copied into the client's region
	Completion Step = "completion" // the client learns that it is there
)
