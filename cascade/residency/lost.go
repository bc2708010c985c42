package residency

import (
	"time"

	"cascadekv/cascade/losslog"
	"cascadekv/cascade/names"
)

// LostLocked remembers why names are lost, and in which level they were last; nil: that does
// not matter.
func (c *Counters) LostLocked(why losslog.Reason, from *Level, all ...*names.Name) {
	for _, n := range all {
		c.LostNameLocked(why, from, n.Namespace(), n.Key())
	}
}

// LostNameLocked is LostLocked of one name that may not be here.
func (c *Counters) LostNameLocked(why losslog.Reason, from *Level, ns, key string) {
	c.state.Mu.AssertHeld()
	loss := losslog.Loss{Reason: why, At: c.state.Age(c.state.Now())}
	if from != nil {
		loss.Level = uint8(from.Index + 1)
	}
	c.lost.Add(Fingerprint(ns, key), loss)
}

// Loss is what is remembered of why a name was lost last.
type Loss struct {
	Reason losslog.Reason // 0: no loss is remembered
	Level  string         // where it was lost, "" where that does not matter
	Ago    time.Duration

	// Since is how long ago a loss may be and be remembered for certain; All: as long as
	// this process has run.
	Since time.Duration
	All   bool
}

// LastLossLocked returns what is remembered of why a name was lost last.
func (c *Counters) LastLossLocked(ns, key string) (l Loss) {
	c.state.Mu.AssertHeld()
	print, now := Fingerprint(ns, key), c.state.Age(c.state.Now())
	since, all := c.lost.Since(print)
	l.Since, l.All = now-since, all
	if last, ok := c.lost.Last(print); ok {
		l.Reason, l.Ago = last.Reason, now-last.At
		if last.Level > 0 && int(last.Level) <= len(c.state.Levels) {
			l.Level = c.state.Levels[last.Level-1].Stats.Name
		}
	}
	return l
}

// unread maps the words of ReasonOf to why a block that is stored was not read.
var unread = map[string]losslog.Reason{
	"corrupt": losslog.Damaged, "gone": losslog.Gone, "no_room": losslog.NoRoom, "deadline": losslog.Late, "unavailable": losslog.Unavailable,
}

// UnreadLocked is LostLocked of names whose block could not be read for a reason by
// ReasonOf; what the client ended is no loss.
func (c *Counters) UnreadLocked(reason string, from *Level, all ...NameID) {
	for _, id := range all {
		if why := unread[reason]; why != 0 {
			c.LostNameLocked(why, from, id.NS, id.Key)
		}
	}
}
