package shmindex

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// NoteKind is what a client did with the keys of a note.
type NoteKind uint8

const (
	Contained  NoteKind = iota + 1 // looked whether each is there
	Probed                         // looked how many leading ones are there
	ReadMissed                     // read them, and found nothing
)

// Note is what a client looked up at once, or read and did not find.
type Note struct {
	Kind  NoteKind
	Space int    // which of the ring's counts has the namespace
	After uint32 // touches that were written before it, the lower half
	At    int64  // Unix nanoseconds
	Table uint32 // lower half of the number of the table that places are of
	Keys  []NotedKey
}

// NotedKey is a key: its place in the table if it is Here, otherwise the fingerprint that
// policies know it by.
type NotedKey struct {
	Here  bool
	Place uint32
	Print uint64
}

const (
	noteHead  = 3       // words before the bits that say which keys are here
	noteKeys  = 1 << 12 // keys of a note, at most
	noteLimit = noteHead + noteKeys/64 + noteKeys
)

// decodeNote reads the first note of some words. It returns how many words the note has, 0 if it
// is none. The keys are put where those of into are.
func decodeNote(words []uint64, into *Note) (used int) {
	if len(words) < noteHead {
		return 0
	}
	n, kind, space := int(words[0]&(1<<16-1)), NoteKind(words[0]>>24), int(words[0]>>16&0xff)
	if n == 0 || n > noteKeys || kind < Contained || kind > ReadMissed || space >= maxCounts || words[2]>>32 != 0 {
		return 0
	}
	first := noteHead + (n+63)/64
	if len(words) < first {
		return 0
	}
	here, halves := words[noteHead:first], 2*n
	for _, w := range here {
		halves -= bits.OnesCount64(w)
	}
	if n%64 != 0 && here[n/64]>>(n%64) != 0 || len(words) < first+(halves+1)/2 {
		return 0
	}
	*into = Note{Kind: kind, Space: space, After: uint32(words[0] >> 32), At: int64(words[1]), Table: uint32(words[2]), Keys: into.Keys[:0]}
	at := 2 * first // in halves of words
	half := func() uint64 {
		v := words[at/2] >> (32 * (at % 2)) & (1<<32 - 1)
		at++
		return v
	}
	for i := range n {
		if here[i/64]>>(i%64)&1 == 1 {
			into.Keys = append(into.Keys, NotedKey{Here: true, Place: uint32(half())})
		} else {
			low := half()
			into.Keys = append(into.Keys, NotedKey{Print: low | half()<<32})
		}
	}
	if at%2 != 0 && half() != 0 {
		return 0
	}
	return at / 2
}

// notes calls fn with each note since the last call, in order, and the namespace that it is of, "" for none, until it
// returns false: with that note the next call begins. It reports whether there is no other. Notes that the client
// may be overwriting, and those behind something that is none, are lost.
func (r *Ring) notes(fn func(namespace string, n *Note) bool) (all bool) {
	head := word(r.mem[ringNoted:])
	if head-r.noted > ringNotes {
		r.noted = head
	}
	for r.noted != head {
		size := r.noteSize(r.noted, head-r.noted)
		r.words = r.words[:0]
		for i := r.noted; i != r.noted+size; i++ {
			r.words = append(r.words, r.noteWord(i))
		}
		// Before it stores a new head the client writes one note behind the old one, or two where
		// a processor reorders its stores.
		if word(r.mem[ringNoted:])-r.noted > ringNotes-2*noteLimit {
			r.noted = head
			break
		}
		if used := decodeNote(r.words, &r.note); used == 0 || uint64(used) != size {
			r.noted = head
			break
		}
		if !fn(r.space(r.note.Space), &r.note) {
			return false
		}
		r.noted += size
	}
	return true
}

func (r *Ring) noteWord(i uint64) uint64 { return word(r.mem[ringNote+8*int(i%ringNotes):]) }

// noteSize is how many words the note at a word has, of most at most, if it is one.
func (r *Ring) noteSize(at, most uint64) uint64 {
	n := r.noteWord(at) & (1<<16 - 1)
	if n > noteKeys {
		return 0
	}
	size, halves := noteHead+(n+63)/64, 2*n
	for i := uint64(noteHead); i < min(size, most); i++ {
		halves -= uint64(bits.OnesCount64(r.noteWord(at + i)))
	}
	return min(size+(halves+1)/2, most)
}

// space returns the namespace that a client has given the i-th count, "" for none.
func (r *Ring) space(i int) string {
	slot := r.mem[ringCounts+i*countBytes:][:countBytes]
	n := atomic.LoadUint32((*uint32)(unsafe.Pointer(&slot[countName])))
	if n > maxCounted {
		return ""
	}
	if name := slot[countName+4:][:n]; string(name) != r.counted[i].namespace {
		return string(name)
	}
	return r.counted[i].namespace
}

// AppendNote appends a note as clients write it. It has a key at least, and at most noteKeys.
func AppendNote(words []uint64, n *Note) []uint64 {
	first := len(words) + noteHead
	words = append(words, uint64(len(n.Keys))|uint64(n.Space)<<16|uint64(n.Kind)<<24|uint64(n.After)<<32, uint64(n.At), uint64(n.Table))
	words = append(words, make([]uint64, (len(n.Keys)+63)/64)...)
	var halves []byte
	for i, k := range n.Keys {
		if k.Here {
			words[first+i/64] |= 1 << (i % 64)
			halves = binary.LittleEndian.AppendUint32(halves, k.Place)
		} else {
			halves = binary.LittleEndian.AppendUint64(halves, k.Print)
		}
	}
	for halves = append(halves, make([]byte, len(halves)%8)...); len(halves) > 0; halves = halves[8:] {
		words = append(words, binary.LittleEndian.Uint64(halves))
	}
	return words
}
