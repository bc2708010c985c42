package tuner

// Counts are operations since the last Observe.
type Counts struct {
	Puts    uint64 // entries stored
	Hits    uint64 // point lookups that found their entry
	Ranges  uint64 // range scans
	Misses  uint64 // point lookups, and probes, that found nothing
	Scanned uint64 // entries that the ranges returned; no operations of their own
}

// Sub returns what came since earlier counts of the same counters.
func (c Counts) Sub(earlier Counts) Counts {
	return Counts{c.Puts - earlier.Puts, c.Hits - earlier.Hits, c.Ranges - earlier.Ranges, c.Misses - earlier.Misses, c.Scanned - earlier.Scanned}
}

// Add returns both counts together.
func (c Counts) Add(more Counts) Counts {
	return Counts{c.Puts + more.Puts, c.Hits + more.Hits, c.Ranges + more.Ranges, c.Misses + more.Misses, c.Scanned + more.Scanned}
}

// Ops is the number of operations.
func (c Counts) Ops() uint64 { return c.Puts + c.Hits + c.Ranges + c.Misses }

// Mix returns the counts as shares; zero without operations.
func (c Counts) Mix() Mix {
	var b bucket
	b.add(c, 1)
	return b.mix()
}

// buckets is how many parts a window has; the oldest is forgotten when the
// youngest is full. A quarter of them is what must look like the whole.
const buckets = 8

// bucket is a part of the window. Counts that span buckets are split in
// proportion, hence the fractions.
type bucket struct {
	puts, hits, ranges, misses, scanned float64
}

func (b *bucket) ops() float64 { return b.puts + b.hits + b.ranges + b.misses }

func (b *bucket) add(c Counts, part float64) {
	b.puts += float64(c.Puts) * part
	b.hits += float64(c.Hits) * part
	b.ranges += float64(c.Ranges) * part
	b.misses += float64(c.Misses) * part
	b.scanned += float64(c.Scanned) * part
}

// window is a ring of buckets of equal size in operations.
type window struct {
	each   float64 // operations of a full bucket
	ring   [buckets]bucket
	at     int // the youngest, being filled
	filled int // full ones
}

func newWindow(ops int) *window { return &window{each: float64(ops) / buckets} }

// add counts c. Of more operations than a window holds only as many as it holds
// count, in the proportions that all of them have.
func (w *window) add(c Counts) {
	total := float64(c.Ops())
	left := min(total, w.each*buckets)
	for left > 0 {
		b := &w.ring[w.at]
		take := min(left, w.each-b.ops())
		b.add(c, take/total)
		left -= take
		// What rounding leaves of a bucket must not stay for ever.
		if b.ops() >= w.each*(1-1e-9) {
			w.at = (w.at + 1) % buckets
			w.ring[w.at] = bucket{}
			w.filled++
		}
	}
}

// full reports whether all buckets but the youngest have been filled once.
func (w *window) full() bool { return w.filled >= buckets-1 }

// mix returns the mix of the youngest n buckets, the unfinished one included.
// Without operations it is zero.
func (w *window) mix(n int) Mix {
	var sum bucket
	for i := range n {
		b := &w.ring[(w.at+buckets-i)%buckets]
		sum.puts += b.puts
		sum.hits += b.hits
		sum.ranges += b.ranges
		sum.misses += b.misses
		sum.scanned += b.scanned
	}
	return sum.mix()
}

func (b *bucket) mix() Mix {
	ops := b.ops()
	if ops == 0 {
		return Mix{}
	}
	m := Mix{Put: b.puts / ops, Hit: b.hits / ops, Range: b.ranges / ops, Miss: b.misses / ops}
	if b.ranges > 0 {
		m.Scanned = b.scanned / b.ranges
	}
	return m
}
