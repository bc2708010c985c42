package tiers

// Stats is what a tier reports of itself besides its Usage. A part that is nil
// does not apply to the tier.
type Stats struct {
	Health   *Health   `json:"health,omitempty"`   // of tiers that may stop answering
	Encoded  *Encoded  `json:"encoded,omitempty"`  // of tiers that may store fewer bytes than a block has
	Merged   *Merged   `json:"merged,omitempty"`   // what all merges did since the tier was opened
	Striping *Striping `json:"striping,omitempty"` // of the newest file, once there is one
}

// Health is what keeps a tier from answering at one moment, and, since it was
// opened, what did.
type Health struct {
	Hanging int    `json:"hanging"`        // operations that were not answered for long
	Files   int    `json:"broken_files"`   // files that are left alone for a while
	Writes  bool   `json:"writes_broken"`  // new blocks are refused for a while
	Breaks  uint64 `json:"breaks_total"`   // times that something began to be left alone
	Refused uint64 `json:"refusals_total"` // operations that were not tried therefore

	ReadOnly bool       `json:"read_only"`      // new blocks are refused for want of space or quota
	Poisoned uint64     `json:"poisoned_total"` // files that were given up after a write that failed
	Reads    ReadErrors `json:"read_errors"`
}

// ReadErrors counts the reads of a tier that failed, by kind.
type ReadErrors struct {
	Corrupt    uint64 `json:"corrupt_total"`    // other bytes than were stored
	Gone       uint64 `json:"gone_total"`       // the file, or the block in it, is there no more
	Unanswered uint64 `json:"unanswered_total"` // not answered in time, or not tried because nothing was
	Failed     uint64 `json:"failed_total"`     // for which the file system had an error
}

// Striping is how the newest file of a tier lies on the servers of a file system
// with stripes, in the words of lfs setstripe.
type Striping struct {
	Asked       string   `json:"asked"`
	Granted     string   `json:"granted"`               // empty: it could not be read
	Differences []string `json:"differences,omitempty"` // each with what usually lies behind it
	Error       string   `json:"error,omitempty"`       // why nothing could be set, or read
}

// AsAsked reports whether all that was asked for is in effect.
func (s Striping) AsAsked() bool { return len(s.Differences) == 0 && s.Error == "" }

// Encoded is what encoding has come to in a tier.
type Encoded struct {
	Stored int64   `json:"stored"` // bytes of Usage.Payload as they are stored, padding excluded
	Codecs []Codec `json:"codecs"` // counted since the tier was opened
}

// Codec is one way to store a block, or, under the name "none", to leave it as
// it is.
type Codec struct {
	Name     string `json:"name"`
	Blocks   uint64 `json:"blocks"`    // put
	BytesIn  uint64 `json:"bytes_in"`  // of those blocks
	BytesOut uint64 `json:"bytes_out"` // as stored
	Decoded  uint64 `json:"decoded"`   // blocks read
}

// Merged is what a Merge did, or several together. Files count in bytes.
type Merged struct {
	Merges   uint64 `json:"merges"`        // that did something
	Segments uint64 `json:"segments"`      // that were rewritten, and are unlinked then
	Blocks   uint64 `json:"blocks"`        // moved
	Bytes    uint64 `json:"bytes"`         // of these blocks
	Written  uint64 `json:"written_bytes"` // of the segments that were made
	Removed  uint64 `json:"removed_bytes"` // of the segments that were rewritten
}

// Add adds what another did.
func (m *Merged) Add(n Merged) {
	m.Merges += n.Merges
	m.Segments += n.Segments
	m.Blocks += n.Blocks
	m.Bytes += n.Bytes
	m.Written += n.Written
	m.Removed += n.Removed
}

// Freed is by how many bytes the tier's files are less; negative when more was
// written, as by a merge that failed before it had emptied a segment.
func (m Merged) Freed() int64 { return int64(m.Removed) - int64(m.Written) }
