package campaign

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"time"

	"cascadekv/internal/block"
	"cascadekv/lustre/campaign/segfile"
	"cascadekv/lustre/segment/format"
)

// survey is what all segments together say, as a rank that recovers them would
// see it: the newest record of each name, and where each block lies. It takes
// about 100 bytes for a name and 100 for a block.
type survey struct {
	seeds [2]maphash.Seed
	mu    sync.Mutex
	names map[nameHash]newest
	where map[block.ID]*copies

	spaces  map[string]int32         // namespaces, numbered as they come
	layouts map[string]format.Record // the newest of each

	// want, when not nil, picks the records that an export asks for, and live
	// that only the newest ones count.
	want func(block.Name) bool
	live bool

	at        int64 // Unix nanoseconds: when names were judged
	conflicts []conflict
	wanted    map[block.ID]struct{}
}

// nameHash stands for namespace and key. Its seeds are random, so that nobody
// can make two names collide.
type nameHash [2]uint64

// newest is the newest record of a name.
type newest struct {
	id      block.ID
	seq     uint64
	expires int64 // Unix nanoseconds; 0: never
	file    int   // index of the segment
	space   int32 // in survey.spaces
	dropped bool
	wanted  bool
}

// copies lists where a block lies.
type copies struct {
	file   int // the first in the order of readers, which is the one they use
	size   int64
	stored int64
	crc    uint32
	more   int
	live   bool
	wanted bool // by an export
	given  bool // to it
}

// conflict is a block of which a second copy claims other facts.
type conflict struct {
	id    block.ID
	files [2]int
}

func (s *survey) hash(n block.Name) nameHash {
	var h nameHash
	for i, seed := range s.seeds {
		h[i] = maphash.Comparable(seed, [2]string{n.Namespace, n.Key})
	}
	return h
}

func expiry(n block.Name) int64 {
	if n.Expires.IsZero() {
		return 0
	}
	if n.Expires.Before(time.Unix(1, 0)) {
		return 1
	}
	return max(1, n.Expires.UnixNano())
}

// add takes the entries of a segment that readers see. Segments may come in any
// order.
func (s *survey) add(file int, entries []segfile.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range entries {
		e := &entries[i]
		switch {
		case e.Hidden || e.Bad:
		case e.Kind == format.KindBlock:
			s.addBlock(file, e)
		case e.Kind == format.KindLayout:
			if s.layouts[e.Name.Namespace].Name.Seq < e.Name.Seq {
				s.layouts[e.Name.Namespace] = e.Record()
			}
		default:
			wanted := s.want != nil && s.want(e.Name)
			if wanted && !s.live && e.Kind == format.KindName {
				s.wanted[e.Info.ID] = struct{}{}
			}
			h := s.hash(e.Name)
			old, ok := s.names[h]
			if !ok || cmp.Or(cmp.Compare(e.Name.Seq, old.seq), cmp.Compare(file, old.file)) >= 0 {
				s.names[h] = newest{e.Info.ID, e.Name.Seq, expiry(e.Name), file, s.space(e.Name.Namespace), e.Kind == format.KindDrop, wanted}
			}
		}
	}
}

func (s *survey) space(ns string) int32 {
	n, ok := s.spaces[ns]
	if !ok {
		n = int32(len(s.spaces))
		s.spaces[strings.Clone(ns)] = n
	}
	return n
}

func (s *survey) addBlock(file int, e *segfile.Entry) {
	c := s.where[e.Info.ID]
	if c == nil {
		s.where[e.Info.ID] = &copies{file: file, size: e.Info.Size, stored: e.Stored, crc: e.Info.CRC}
		return
	}
	c.more++
	if c.size != e.Info.Size || c.crc != e.Info.CRC {
		s.conflicts = append(s.conflicts, conflict{e.Info.ID, [2]int{c.file, file}})
	}
	if file < c.file {
		c.file, c.size, c.stored, c.crc = file, e.Info.Size, e.Stored, e.Info.CRC
	}
}

// lives reports whether the NAME e of a segment is the newest record of its
// name, and its block is there. It counts after settle.
func (s *survey) lives(file int, e *segfile.Entry) bool {
	n := s.names[s.hash(e.Name)]
	return n.file == file && n.seq == e.Name.Seq && s.visible(n) && s.where[n.id] != nil
}

// visible reports whether a name is neither withdrawn nor expired.
func (s *survey) visible(n newest) bool {
	return !n.dropped && (n.expires == 0 || n.expires > s.at)
}

// settle finds out which blocks are live at now, and calls fn for each live name with
// its block, and for each newest name whose block is nowhere with nil.
func (s *survey) settle(now time.Time, fn func(newest, *copies)) {
	s.at = now.UnixNano()
	for _, n := range s.names {
		if !s.visible(n) {
			continue
		}
		c := s.where[n.id]
		if c != nil {
			c.live = true
			c.wanted = c.wanted || s.live && n.wanted
		}
		fn(n, c)
	}
	for id := range s.wanted {
		if c := s.where[id]; c != nil {
			c.wanted = true
		}
	}
	slices.SortFunc(s.conflicts, func(a, b conflict) int {
		return cmp.Or(slices.Compare(a.files[:], b.files[:]), slices.Compare(a.id[:], b.id[:]))
	})
}
