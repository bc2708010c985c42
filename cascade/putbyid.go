package cascade

import (
	"context"
	"fmt"

	"cascadekv/cascade/eviction"
	"cascadekv/dht/directory"
)

// PutByID puts e for bytes that are stored already, by their id, as a key of
// directory.Contents: Put of a client that has not sent them. Where this rank has them they
// get one more name. Else they are read from the rank that keeps them, or is about to write
// them, and are a block of this rank as if they were put, which is not written a second time.
// Errors: those of Put, and ErrMiss where they are not found: put the bytes.
func PutByID(ctx context.Context, s *Store, e Entry, key string) (PutResult, error) {
	if err := e.Check(); err != nil {
		return PutResult{}, err
	}
	id, ok := directory.ContentID(key)
	if !ok {
		return PutResult{}, fmt.Errorf("%w: %q is no id", ErrBadEntry, key)
	}
	res := PutResult{ID: id, Duplicate: true}
	if n, err := s.addName(ctx, e, id, single); n != nil || err != nil {
		return res, err
	}
	from := make([]*View, 1)
	if s.others.AsksElsewhere() {
		s.load.GetElsewhere(ctx, directory.Contents, []string{key}, []int{0}, from, eviction.Unheld)
	}
	if from[0] == nil {
		return PutResult{}, ErrMiss
	}
	defer from[0].Release()
	st, err := s.Stage(ctx, from[0].Size())
	if err != nil {
		return PutResult{}, err
	}
	st.Append(from[0].Bytes())
	_, _, err = st.commit(ctx, e, id, single)
	return res, err
}
