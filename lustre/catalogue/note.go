package catalogue

import (
	"encoding/binary"
	"strings"

	"cascadekv/internal/block"
	"cascadekv/lustre/index"
)

// note is what the record of a name keeps of its texts: the hash of the
// namespace, the length of the key, the key, the parent (docs/format.md §5.6).
func note(ns index.Namespace, n block.Name) string {
	var room [len(ns) + binary.MaxVarintLen64]byte
	var note strings.Builder
	note.Grow(len(ns) + 2 + len(n.Key) + len(n.Parent))
	note.Write(binary.AppendUvarint(append(room[:0], ns[:]...), uint64(len(n.Key))))
	note.WriteString(n.Key)
	note.WriteString(n.Parent)
	return note.String()
}

// isNoteOf reports whether a note is that of a key.
func isNoteOf(note []byte, key string) bool {
	const hash = len(index.Namespace{})
	if len(note) < hash {
		return false
	}
	size, n := binary.Uvarint(note[hash:])
	rest := note[hash+max(n, 0):]
	return n > 0 && size <= uint64(len(rest)) && string(rest[:size]) == key
}

// cutNote reads a note; false for one that is none.
func cutNote(note string) (ns index.Namespace, key, parent string, ok bool) {
	if len(note) < len(ns) {
		return ns, "", "", false
	}
	copy(ns[:], note)
	rest := note[len(ns):]
	size, n := binary.Uvarint([]byte(rest[:min(len(rest), binary.MaxVarintLen64)]))
	if n <= 0 || size > uint64(len(rest)-n) {
		return ns, "", "", false
	}
	rest = rest[n:]
	return ns, rest[:size], rest[size:], true
}
