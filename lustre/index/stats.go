package index

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// counters are what the tuner's windows are made of. They live as long as the
// Index.
type counters struct {
	puts, filled, hits, misses      atomic.Uint64
	points, ranges, scanned, absent atomic.Uint64
	retunes, removed                atomic.Uint64
}

// lookups counts a call that asked for so many things and found some.
func (c *counters) lookups(asked, found int, t trail) {
	c.hits.Add(uint64(found))
	c.misses.Add(uint64(asked - found))
	t.end()
	c.points.Add(t.points)
	c.ranges.Add(t.ranges)
	c.scanned.Add(t.scanned)
	c.absent.Add(t.absent)
}

// Stats is the state of an Index at one moment. Amplifications and the filter
// count from the last open, retune or rebuild.
type Stats struct {
	Puts    uint64 // blocks and names that were put
	Filled  uint64 // of them, those that Load put into an empty index
	Hits    uint64 // names and blocks that were asked for and found
	Misses  uint64 // names and blocks that were asked for and not found
	Retunes uint64
	Removed uint64 // entries of deleted segments that were removed

	// What that cost: each search by the key is a point, the beginning of a
	// range, or absent. A chain is a range for each of its branches, and a name
	// of none is a point, however many are asked for in one call.
	Points  uint64 // searches that found an entry, and no step after them did
	Ranges  uint64 // searches that did, and the steps that followed
	Scanned uint64 // entries of ranges, those that count no more included
	Absent  uint64 // searches that found nothing

	Segments int
	Entries  uint64 // put into segments that are alive, replaced ones included
	Dead     uint64 // put into segments that are not, and not removed yet

	SizeRatio int // T
	Runs      int // K

	Levels       []LevelStats // from the top, empty ones included
	WriteAmp     float64      // bytes written for each byte put
	ReadAmp      int          // sorted runs that a search may meet
	FilterHits   int64        // searches of a table that its filter saved
	FilterMisses int64
	PageHits     int64 // pages of tables that were asked for and in the cache, since Open
	PageMisses   int64 // and that were not; compactions ask too
	DiskBytes    uint64
	CacheBytes   int64  // tables in memory
	MemoryBytes  uint64 // write buffers, those that are still being read included
	Flushes      int64
	Compactions  int64
	Compacting   int64 // of them are running
}

// LevelStats is one level of the tree.
type LevelStats struct {
	Tables   int64
	Bytes    int64
	Runs     int32
	WriteAmp float64
}

// Stats returns counters and sizes. A broken index has only the former, and so
// has one in the moment in which it is replaced or too busy to answer.
func (x *Index) Stats() Stats {
	s := Stats{
		Puts: x.count.puts.Load(), Filled: x.count.filled.Load(), Hits: x.count.hits.Load(), Misses: x.count.misses.Load(),
		Points: x.count.points.Load(), Ranges: x.count.ranges.Load(), Scanned: x.count.scanned.Load(), Absent: x.count.absent.Load(),
		Retunes: x.count.retunes.Load(), Removed: x.count.removed.Load(),
	}
	e := x.engine.Load()
	r, ok := e.take() // only so that the database is not closed meanwhile
	if !ok {
		return s
	}
	defer e.give(r)
	s.SizeRatio, s.Runs = e.opt.SizeRatio, e.opt.Runs
	s.Segments = int(e.segments.count.Load())
	s.Entries, s.Dead = uint64(e.segments.entries.Load()), uint64(e.segments.deadEntries.Load())
	ctx, cancel := context.WithTimeout(context.Background(), statsWait)
	defer cancel()
	got := make(chan *pebble.Metrics, 1)
	if e.call(ctx, func() { got <- e.db.Metrics() }) == nil {
		s.fill(<-got)
	}
	return s
}

// statsWait bounds how long Stats waits for Pebble, which may be busy.
const statsWait = time.Second

func (s *Stats) fill(m *pebble.Metrics) {
	for i := range m.Levels {
		l := &m.Levels[i]
		s.Levels = append(s.Levels, LevelStats{Tables: l.TablesCount, Bytes: l.TablesSize, Runs: l.Sublevels, WriteAmp: l.WriteAmp()})
	}
	total := m.Total()
	// Pebble counts what goes to a log, which this database has not.
	s.WriteAmp, s.ReadAmp = max(0, total.WriteAmp()-1), m.ReadAmp()
	s.PageHits, s.PageMisses = m.BlockCache.Hits, m.BlockCache.Misses
	s.FilterHits, s.FilterMisses = m.Filter.Hits, m.Filter.Misses
	s.DiskBytes, s.CacheBytes = m.DiskSpaceUsage(), m.BlockCache.Size
	s.MemoryBytes = m.MemTable.Size + m.MemTable.ZombieSize
	s.Flushes, s.Compactions, s.Compacting = m.Flush.Count, m.Compact.Count, m.Compact.NumInProgress
}
