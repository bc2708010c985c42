package losslog

import "time"

// Reason is why a name was lost.
type Reason uint8

// Reasons.
const (
	Evicted     Reason = iota + 1 // its block made room for others where its last copy was
	Unwritten                     // likewise, and it was not written: too few requests asked for it
	Generated                     // likewise: only prompts are written
	Shed                          // likewise: there was no budget to write it
	Forgotten                     // it was given up for the bound on the heap that names take
	Deleted                       // by a client
	Cleared                       // with its namespace
	Ended                         // its time was over
	Replaced                      // a later put or a deletion on another rank
	Damaged                       // its bytes failed their checksum
	Gone                          // the file, or the other rank, that had its bytes has them no more
	Refused                       // a put of it found no room
	NoRoom                        // it is stored, and memory had no room to read it to
	Late                          // it is stored, and did not come in time
	Unavailable                   // it is stored, and could not be read
	RankDead                      // only a rank that is dead had it
)

var words = [...]string{
	"", "evicted", "unwritten", "generated", "shed", "forgotten", "deleted", "cleared", "ended", "replaced", "damaged", "gone", "refused", "no_room", "late", "unavailable", "rank_dead",
}

// String is the word for a reason, as docs/protocol.md has it.
func (r Reason) String() string {
	if int(r) < len(words) {
		return words[r]
	}
	return "unknown"
}

// Loss is one loss of a name.
type Loss struct {
	Reason Reason
	Where  uint16        // in the caller's numbers
	At     time.Duration // since the caller's origin, rounded down to 17 ms
}

// Log is the losses remembered. It is not safe for concurrent use.
//
// Losses with the same bits of their fingerprints share a set of a few places, in which a
// new one takes the place of the oldest. So what is forgotten of one set is known.
type Log struct {
	most int
	sets []set // nil before the first loss
}

// New returns an empty log, which takes so many bytes from the first loss on: 16 for each
// that it remembers.
func New(bytes int) Log { return Log{most: max(bytes/ways/entryBytes, 1)} }

const (
	ways       = 4
	entryBytes = 16

	tick = 1 << 24 // nanoseconds: 32 bits last for two years
)

// set has its losses with the newest first.
type set [ways]entry

type entry struct {
	print  uint64
	ticks  uint32
	reason Reason // 0: none
	where  uint16
}

func (l *Log) of(print uint64) *set { return &l.sets[(print^print>>32)%uint64(len(l.sets))] }

// Add records a loss of the name with a fingerprint, in place of an earlier one of it.
func (l *Log) Add(print uint64, loss Loss) {
	if l.sets == nil {
		l.sets = make([]set, l.most)
	}
	s := l.of(print)
	at := 0
	for at < ways-1 && s[at].reason != 0 && s[at].print != print {
		at++
	}
	copy(s[1:at+1], s[:at])
	s[0] = entry{print: print, ticks: uint32(loss.At / tick), reason: loss.Reason, where: loss.Where}
}

// Last returns the last loss of the name with a fingerprint; false: none is remembered.
func (l *Log) Last(print uint64) (Loss, bool) {
	if l.sets == nil {
		return Loss{}, false
	}
	for _, e := range l.of(print) {
		if e.reason != 0 && e.print == print {
			return e.loss(), true
		}
	}
	return Loss{}, false
}

// Since returns from when on a loss of the name with a fingerprint would be remembered:
// that of the oldest loss in its set, if there may have been older ones. all: since the
// log was made.
func (l *Log) Since(print uint64) (at time.Duration, all bool) {
	if l.sets == nil {
		return 0, true
	}
	oldest := l.of(print)[ways-1]
	return oldest.loss().At, oldest.reason == 0
}

func (e entry) loss() Loss {
	return Loss{Reason: e.reason, Where: e.where, At: time.Duration(e.ticks) * tick}
}
