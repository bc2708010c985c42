package store

// Notes are what the user of a store keeps in its log besides blocks: opaque records of at most MaxNote
// bytes. The log has them in the order in which Pending returns them, and they are as durable as it is: after the
// end of a process each that was written is there, after a loss of power each that a Sync has seen, and never one without
// those before it.
//
// The store calls the methods with the log held, one at a time and without a lock of its own. They do not
// wait for the disk, and call no method of the store that does.
type Notes interface {
	// Reset forgets what Replay was called with: another log is read, or none counts.
	Reset()

	// Replay is called by Open with each note of the log, in order. p is valid until it returns.
	Replay(p []byte)

	// Pending returns the notes that the log does not have, in order. They stay as they are until
	// Written. It is false if there are more than were kept: then the log is written anew.
	Pending() (notes [][]byte, whole bool)

	// All calls fn with notes that are true, in place of all those before, for a new log: as often as it
	// takes, with some each time, until fn returns an error, which it returns. What changes while it runs may or
	// may not be among them, and is pending afterwards.
	All(fn func([][]byte) error) error

	// Written is called when the log has what Pending returned last, or, after All, what was pending
	// when that began.
	Written()
}

// noNotes is of a store whose user has none.
type noNotes struct{}

func (noNotes) Reset()                         {}
func (noNotes) Replay([]byte)                  {}
func (noNotes) Pending() ([][]byte, bool)      { return nil, true }
func (noNotes) All(func([][]byte) error) error { return nil }
func (noNotes) Written()                       {}
