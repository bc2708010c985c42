package record

import "slices"

// linksKept bounds the keys of each of two generations of links: 60 MiB of both.
const linksKept = 1 << 19

// refuted is the parent of a key that came after two different ones: it stands for no prefix.
const refuted = ^uint64(0)

// links remembers which key comes before which, of keys used lately. The zero value
// remembers none.
type links struct {
	young, old map[uint64]uint64 // parents by key; 0: none was seen
}

// parent returns the key before one, 0 for none; known is whether the key was seen.
func (l *links) parent(key uint64) (parent uint64, known bool) {
	p, known := l.young[key]
	if !known {
		if p, known = l.old[key]; known {
			l.put(key, p) // it is used again
		}
	}
	if p == refuted {
		return 0, true
	}
	return p, known
}

// learn records that key came after parent, or, with 0, that it was seen.
func (l *links) learn(key, parent uint64) {
	was, known := l.young[key]
	if !known {
		was, known = l.old[key]
	}
	switch {
	case !known || was == 0:
		l.put(key, parent)
	case parent != 0 && parent != was:
		l.put(key, refuted)
	}
}

func (l *links) put(key, parent uint64) {
	if l.young == nil || len(l.young) >= linksKept {
		l.old, l.young = l.young, make(map[uint64]uint64)
	}
	l.young[key] = parent
}

// ancestors returns the keys before and with last, head first, at most so many. rooted is
// false if the first of them was only ever named as a parent.
func (l *links) ancestors(last uint64, most int) (chain []uint64, rooted bool) {
	rooted = true
	seen := map[uint64]struct{}{}
	for key := last; key != 0 && len(chain) < most; {
		if _, circle := seen[key]; circle {
			break
		}
		seen[key] = struct{}{}
		chain = append(chain, key)
		key, rooted = l.parent(key)
	}
	slices.Reverse(chain)
	return chain, rooted
}
