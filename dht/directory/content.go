package directory

import (
	"encoding/hex"

	"cascadekv/internal/block"
)

// Contents is the namespace of what ranks state of bytes instead of names: the key of
// such a statement is that of the id (ContentKey), its Info is the block's, its put
// stamp ContentSeq, and its depth the number of names that the owner had for the bytes then.
// It has a segment when the owner keeps the bytes there for others to rely on, or else a
// place in memory when the owner is about to write them. Clients read blocks by their
// ids in it, and put and delete nothing there.
const Contents = "\x00contents"

// keeper is the statement of the lowest living rank that keeps bytes in segments, nil for
// none.
func (e *entry) keeper() (lowest *record) {
	for i := range e.records {
		if r := &e.records[i]; r.Segment != nil && !r.dead && (lowest == nil || r.Owner < lowest.Owner) {
			lowest = r
		}
	}
	return lowest
}

// seconds finds the living owners that keep bytes in segments though a rank of a lower number,
// which lives, does so too: they may give theirs up.
func (e *entry) seconds(k key) (out []Stale) {
	keeper := e.keeper()
	for i := range e.records {
		if r := &e.records[i]; r.Segment != nil && !r.dead && r != keeper && keeper.Agrees(&r.Statement) {
			out = append(out, Stale{Owner: r.Owner, Namespace: k.namespace, Key: k.name, Before: ContentSeq})
		}
	}
	return out
}

// ContentSeq is the put stamp of all statements of Contents: none is out of date.
const ContentSeq = 1

// ContentKey is the key of an id in Contents.
func ContentKey(id block.ID) string { return hex.EncodeToString(id[:]) }

// ContentID is the id of a key in Contents, or of block.ID.String, which has half as many
// digits for one of 128 bits; false when it is none, or provisional.
func ContentID(key string) (id block.ID, ok bool) {
	if n := hex.EncodedLen(len(id)); len(key) != n && len(key) != n/2 {
		return id, false
	}
	_, err := hex.Decode(id[:], []byte(key))
	return id, err == nil && !id.IsProvisional()
}
