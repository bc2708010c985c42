package memory

import (
	"hash/maphash"

	"cascadekv/internal/block"
)

// nameRef is where the record of one name is.
type nameRef struct {
	offset, size int64
	sum          uint64 // of namespace and key; equal ones need not be equal names
}

// nameSet is the records of a block's names. Of many it keeps an index: a value
// that is the same for all blocks of a model may have millions of names.
type nameSet struct {
	refs  []nameRef
	at    map[uint64]int // place in refs by sum, nil while there are few
	twins bool           // two names had one sum, of which the index knows one at most
}

// manyNames is from when on an index is kept.
const manyNames = 16

var sumSeed = maphash.MakeSeed()

// sumOf is the sum of a name.
func sumOf(n block.Name) uint64 {
	var h maphash.Hash
	h.SetSeed(sumSeed)
	_, _ = h.WriteString(n.Namespace)
	_ = h.WriteByte(0)
	_, _ = h.WriteString(n.Key)
	return h.Sum64()
}

// add takes in a name that is not there.
func (x *nameSet) add(r nameRef) {
	x.refs = append(x.refs, r)
	switch {
	case x.at != nil:
		x.index(len(x.refs) - 1)
	case len(x.refs) > manyNames:
		x.at = make(map[uint64]int, 2*len(x.refs))
		for i := range x.refs {
			x.index(i)
		}
	}
}

func (x *nameSet) index(i int) {
	sum := x.refs[i].sum
	if _, there := x.at[sum]; there {
		x.twins = true
	}
	x.at[sum] = i
}

// replace puts another record of the same name in the place of one.
func (x *nameSet) replace(i int, r nameRef) { x.refs[i] = r }

// remove takes a record away; the last one gets its place.
func (x *nameSet) remove(i int) {
	last := len(x.refs) - 1
	gone, moved := x.refs[i], x.refs[last]
	x.refs[i] = moved
	x.refs = x.refs[:last]
	if at, ok := x.at[moved.sum]; ok && at == last {
		x.at[moved.sum] = i
	}
	if at, ok := x.at[gone.sum]; ok && at == i && (i == last || gone.sum != moved.sum) {
		delete(x.at, gone.sum)
	}
}

// find returns the place of the record with a sum that is the one, -1 for none.
func (x *nameSet) find(sum uint64, is func(nameRef) bool) int {
	if x.at != nil {
		i, ok := x.at[sum]
		if ok && is(x.refs[i]) {
			return i
		}
		if !x.twins {
			return -1
		}
	}
	for i, r := range x.refs {
		if r.sum == sum && is(r) {
			return i
		}
	}
	return -1
}
