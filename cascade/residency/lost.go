package residency

import (
	"time"

	"cascadekv/cascade/names"
	"cascadekv/cascade/policy"
	"cascadekv/internal/block"
	"cascadekv/internal/losslog"
)

// lostBytes is what is taken to remember why names were lost last: 65,536 of them.
const lostBytes = 1 << 20

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
		loss.Where = uint16(from.Index + 1)
	}
	c.lost.Add(block.Fingerprint(ns, key), loss)
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
	print, now := block.Fingerprint(ns, key), c.state.Age(c.state.Now())
	since, all := c.lost.Since(print)
	l.Since, l.All = now-since, all
	if last, ok := c.lost.Last(print); ok {
		l.Reason, l.Ago = last.Reason, now-last.At
		if last.Where > 0 && int(last.Where) <= len(c.state.Levels) {
			l.Level = c.state.Levels[last.Where-1].Stats.Name
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

// ExplainLocked returns what a level's policy reports of b, there, or of what left it with a
// fingerprint, remembered. b may be nil. Neither: the policy knows nothing of it, or there is
// none.
func (m *Level) ExplainLocked(b *Block, print uint64) (e policy.Explanation, there, remembered bool) {
	m.state.Mu.AssertHeld()
	explains, ok := m.Policy.(policy.Explainer)
	if !ok {
		return e, false, false
	}
	now := m.state.Clock()
	if b != nil {
		if e, there = explains.Explain(now, m.nodeOf(b)); there {
			return e, true, false
		}
	}
	e, remembered = explains.Recall(now, print)
	return e, false, remembered
}
