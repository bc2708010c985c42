package breaker

import (
	"fmt"
	"time"

	"cascadekv/tiers"
)

// The breaker keeps requests away from what does not answer: a file whose
// objects lie on a server that is gone, or all writes. It is a policy: the times
// are reported, nothing is done. watch.go asks it and reports to it what happened.
//
// A read that hangs stays in the kernel until the server is back. So what is
// bounded is how many of them may hang: one or a few of each file, and of all
// files together half as many as there may be readers; then only files that
// answer are read, and one other at a time, up to half as many more than
// readers. A write that hangs gives its file up, and the next one goes to a new
// file, which may lie elsewhere: so writes are tried again, one at a time,
// while others hang.
const (
	BreakAfter = 3 // failures one after the other that end the tries

	firstPause = time.Second // then the time to the next try, which doubles
	lastPause  = 30 * time.Second

	// An operation that takes longer than slowAfter, and a second for each
	// slowBytes, counts as hanging. That is no failure yet: servers that
	// restart take 20 s. It just holds up what would hang with it.
	SlowAfter = time.Second
	slowBytes = 50 << 20

	// maxHangs bounds the reads that hang of a file of which others succeed:
	// one with several stripes of which one is gone.
	maxHangs = 4

	// provenFor is how long a file that answered counts as one that does.
	provenFor = 10 * time.Second
)

// outcome is what became of an operation.
type outcome int

const (
	answered  outcome = iota // also with an error
	silent                   // an error that means no answer
	cancelled                // the caller ended it
	unknown                  // a success that does not come from where the bytes are
)

// flight is one operation that is under way.
type flight struct {
	since time.Time
	due   time.Time // when it begins to count as hanging
}

// circuit is what is known of one file, or of all reads or writes. The zero
// value has seen nothing bad.
type circuit struct {
	flights  map[*flight]struct{}
	due      time.Time // none of them hangs before
	failures int       // in a row: those of operations at the same time are one
	failed   time.Time // the last of them
	good     time.Time // the last answer
	next     time.Time // no try before
	pause    time.Duration
}

// begin notes that f is under way.
func (c *circuit) begin(f *flight) {
	if c.flights == nil {
		c.flights = map[*flight]struct{}{}
	}
	if len(c.flights) == 0 || f.due.Before(c.due) {
		c.due = f.due
	}
	c.flights[f] = struct{}{}
}

// end notes the outcome. It reports whether the circuit was broken by that.
func (c *circuit) end(f *flight, now time.Time, o outcome) (broke bool) {
	delete(c.flights, f)
	if o == answered {
		c.failures, c.pause, c.next, c.good = 0, 0, time.Time{}, now
	}
	if o == answered || o == unknown || o == cancelled && now.Before(f.due) {
		return false
	}
	if c.failures > 0 && !f.since.After(c.failed) {
		return false
	}
	c.failures++
	c.failed = now
	if c.failures >= BreakAfter {
		c.wait(now)
	}
	return c.failures == BreakAfter
}

// wait puts the next try off, longer each time.
func (c *circuit) wait(now time.Time) {
	c.pause = min(max(2*c.pause, firstPause), lastPause)
	c.next = now.Add(c.pause)
}

// hanging returns how many operations hang and since when the first of them
// was begun.
func (c *circuit) hanging(now time.Time) (n int, since time.Time) {
	if len(c.flights) == 0 || now.Before(c.due) {
		return 0, since
	}
	c.due = time.Time{}
	for f := range c.flights {
		if c.due.IsZero() || f.due.Before(c.due) {
			c.due = f.due
		}
		if !f.due.After(now) {
			if n++; n == 1 || f.since.Before(since) {
				since = f.since
			}
		}
	}
	return n, since
}

// bad reports whether nothing has been answered since something went wrong, and
// how many operations hang.
func (c *circuit) bad(now time.Time) (bad bool, hangs int) {
	hangs, since := c.hanging(now)
	return c.failures >= BreakAfter || hangs > 0 && !c.good.After(since), hangs
}

// Refusal is the reason that an operation is not tried.
type Refusal struct {
	What     string
	Failures int
	hanging  int
	retry    time.Duration // until the next try; 0: when a hanging one ends
}

// Error names what does not answer, and when it is tried again.
func (r *Refusal) Error() string {
	why := fmt.Sprintf("%s failed %d times in a row", r.What, r.Failures)
	if r.hanging > 0 {
		why = fmt.Sprintf("%d operations on %s hang", r.hanging, r.What)
	}
	when := "when one of them ends"
	if r.retry > 0 {
		when = "in " + r.retry.String()
	}
	return fmt.Sprintf("not tried: %s; next try %s: check the file system's servers", why, when)
}

// breaker has the circuits of all files and of the writes. Not safe for concurrent use.
type breaker struct {
	readers, writers int // operations that may be under way
	files            map[string]*circuit
	reading, writing circuit  // all reads, all writes
	trying           *circuit // the file that is read to see whether others than the proven can be

	broken  uint64 // times that a circuit broke
	refused uint64 // operations that were not tried
}

func newBreaker(readers, writers int) *breaker {
	return &breaker{readers: readers, writers: writers, files: map[string]*circuit{}}
}

// maxKnown bounds the files that are remembered without a need.
const maxKnown = 1 << 14

// file returns the circuit of a file.
func (b *breaker) file(path string) *circuit {
	c := b.files[path]
	if c != nil {
		return c
	}
	if len(b.files) >= maxKnown {
		for path, c := range b.files {
			if c.failures == 0 && len(c.flights) == 0 {
				delete(b.files, path)
			}
		}
	}
	c = &circuit{}
	b.files[path] = c
	return c
}

func (b *breaker) refuse(r *Refusal) *Refusal {
	b.refused++
	return r
}

// mayRead returns nil when a read of c, called what, should be tried.
func (b *breaker) mayRead(c *circuit, what string, now time.Time) *Refusal {
	bad, hangs := c.bad(now)
	switch {
	case hangs >= maxHangs || bad && hangs > 0:
		return b.refuse(&Refusal{What: what, hanging: hangs})
	case bad && (now.Before(c.next) || len(c.flights) > 0):
		return b.refuse(&Refusal{What: what, Failures: c.failures, retry: max(c.next.Sub(now), 0)})
	}
	all, _ := b.reading.hanging(now)
	if all < max(b.readers/2, 1) || !c.good.IsZero() && now.Sub(c.good) < provenFor {
		return nil
	}
	if now.Before(b.reading.next) || all >= b.readers+b.readers/2 {
		return b.refuse(&Refusal{What: "many files", hanging: all, retry: max(b.reading.next.Sub(now), 0)})
	}
	b.reading.wait(now)
	b.trying = c
	return nil
}

// mayWrite returns nil when a write should be tried.
func (b *breaker) mayWrite(now time.Time) *Refusal {
	c := &b.writing
	bad, hangs := c.bad(now)
	switch {
	case hangs >= b.writers:
		return b.refuse(&Refusal{What: "new segments", hanging: hangs})
	case !bad && hangs < max(b.writers/2, 1):
		return nil
	case now.Before(c.next):
		return b.refuse(&Refusal{What: "new segments", Failures: c.failures, hanging: hangs, retry: c.next.Sub(now)})
	}
	c.wait(now)
	return nil
}

// begin notes an operation of n bytes, of c when it is a read and of nothing
// when it is a write.
func (b *breaker) begin(c *circuit, now time.Time, n int64) *flight {
	f := &flight{since: now, due: now.Add(SlowAfter + time.Duration(n)*time.Second/slowBytes)}
	if c == nil {
		b.writing.begin(f)
		return f
	}
	c.begin(f)
	b.reading.begin(f)
	return f
}

// end notes the outcome of what begin began.
func (b *breaker) end(c *circuit, f *flight, now time.Time, o outcome) {
	if c == nil {
		c = &b.writing
	} else {
		delete(b.reading.flights, f)
		if o == answered && c == b.trying {
			b.trying, b.reading.pause, b.reading.next = nil, 0, time.Time{}
		}
	}
	if c.end(f, now, o) {
		b.broken++
	}
}

// health fills in what a circuit breaker sees.
func (b *breaker) health(now time.Time) tiers.Health {
	reads, _ := b.reading.hanging(now)
	bad, writes := b.writing.bad(now)
	h := tiers.Health{Hanging: reads + writes, Writes: bad, Breaks: b.broken, Refused: b.refused}
	for _, c := range b.files {
		if bad, _ := c.bad(now); bad {
			h.Files++
		}
	}
	return h
}
