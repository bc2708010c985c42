package policy

import "hash/maphash"

// table is a slab whose elements are found by fingerprint. It has an element for each
// bucket and grows by a bucket at a time (linear hashing), so that no call takes longer than
// another, and so that it takes as much whatever the fingerprints are. The hash has a seed
// of its own: who chooses names of blocks cannot choose buckets. No order depends on it.
type table[T any] struct {
	all   slab[record[T]]
	heads slab[uint32] // by bucket: number + 1 of the first element
	seed  maphash.Seed
}

// record is an element of a table.
type record[T any] struct {
	low, high uint32 // of the fingerprint; in halves, so that nothing is lost to alignment
	next      uint32 // number + 1 of the next in the bucket
	value     T
}

func newTable[T any]() table[T] { return table[T]{seed: maphash.MakeSeed()} }

// at returns an element, which stays where it is.
func (t *table[T]) at(i uint32) *T { return &t.all.at(i).value }

func (t *table[T]) len() int { return t.all.len() }

// print is the fingerprint of an element.
func (r *record[T]) print() uint64 { return uint64(r.high)<<32 | uint64(r.low) }

// bucket is where the elements of a fingerprint are.
func (t *table[T]) bucket(print uint64) *uint32 {
	hash := uint32(maphash.Comparable(t.seed, print))
	size := uint32(1)<<log2(int(t.heads.made), 31)*2 - 1
	if b := hash & size; b < t.heads.made {
		return t.heads.at(b)
	}
	return t.heads.at(hash & (size >> 1))
}

// find returns the element of a fingerprint, none if there is none.
func (t *table[T]) find(print uint64) uint32 {
	if t.heads.made == 0 {
		return none
	}
	i := *t.bucket(print)
	for ; i > 0; i = t.all.at(i - 1).next {
		if t.all.at(i-1).print() == print {
			break
		}
	}
	return i - 1
}

// add adds an element for a fingerprint that has none.
func (t *table[T]) add(print uint64) uint32 {
	i := t.all.take()
	if t.len() > int(t.heads.made) {
		t.divide()
	}
	r := t.all.at(i)
	r.low, r.high = uint32(print), uint32(print>>32)
	head := t.bucket(print)
	r.next, *head = *head, i+1
	return i
}

// divide divides the bucket whose turn it is between itself and a new one.
func (t *table[T]) divide() {
	made := t.heads.take()
	if made == 0 {
		return
	}
	old := t.heads.at(made - 1<<log2(int(made), 31))
	i := *old
	*old = 0
	for i > 0 {
		r := t.all.at(i - 1)
		head := t.bucket(r.print())
		r.next, *head, i = *head, i, r.next
	}
}

// remove takes an element out.
func (t *table[T]) remove(i uint32) {
	at := t.bucket(t.all.at(i).print())
	for *at != i+1 {
		at = &t.all.at(*at - 1).next
	}
	*at = t.all.at(i).next
	t.all.give(i)
}
