package others

import (
	"math"
	"time"

	"cascadekv/tiers"
)

// OwnNames is how many names only the catalogue has of this rank's own files, by
// namespace, and the bytes of their blocks. Readers share it and change nothing.
type OwnNames struct {
	Spaces   map[string]OwnSpace
	Estimate bool // from a part of the catalogue: the rest was not looked at

	until time.Time // when it is to be counted anew
}

// OwnSpace is OwnNames of one namespace.
type OwnSpace struct {
	Names int
	Bytes int64
}

const (
	countFor  = 100 * time.Millisecond // for counting: other ranks wait for the answer of STATS
	countRest = 20                     // so many times as long as it took a count stays
)

// OwnNames counts the names that only the catalogue has of this rank's own files: what is in
// memory is not among them. It looks at the catalogue for a tenth of a second; the names lie
// evenly there, and those beyond are estimated from those before. Callers that come soon
// after one another have one count. Names that are bound to a parent which is nowhere are
// counted. nil: there are none, or the catalogue is broken. The caller does not hold the mutex.
func (x *Exchange) OwnNames() *OwnNames {
	if !x.state.Cold.Spilled() {
		return nil
	}
	start := time.Now()
	if last := x.counted.Load(); last != nil && start.Before(last.until) {
		return last
	}
	c := &OwnNames{Spaces: map[string]OwnSpace{}}
	late := func() bool { return time.Since(start) > countFor }
	cursor := uint64(0)
	for more := true; more; more = cursor != 0 && !late() {
		var err error
		cursor, err = x.Catalogue.ScanOwn("", true, cursor, func(f tiers.Found) bool {
			if x.onlyOwn(&f) {
				sp := c.Spaces[f.Name.Namespace]
				c.Spaces[f.Name.Namespace] = OwnSpace{sp.Names + 1, sp.Bytes + f.Info.Size}
			}
			return !late()
		})
		if err != nil {
			return nil
		}
	}
	if cursor != 0 {
		c.Estimate = true
		times := math.Exp2(64) / float64(cursor)
		for ns, sp := range c.Spaces {
			c.Spaces[ns] = OwnSpace{int(float64(sp.Names) * times), int64(float64(sp.Bytes) * times)}
		}
	}
	c.until = time.Now().Add(countRest * time.Since(start))
	x.counted.Store(c)
	return c
}

// onlyOwn reports whether what the catalogue has of a name counts, and is not in memory.
func (x *Exchange) onlyOwn(f *tiers.Found) bool {
	x.state.Mu.Lock()
	defer x.state.Mu.Unlock()
	n := x.state.Mu.Names.Get(f.Name.Namespace, f.Name.Key)
	return (n == nil || n.Block() == nil) && !x.guarded.tombstones.Has(&f.Name)
}
