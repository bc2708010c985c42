package lustre

import (
	"fmt"
	"sync"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// stood is which blocks names in other parts stood for when that was asked, with Catalogue.PartsLeft then.
type stood struct {
	sync.Mutex
	at map[block.ID]uint64
}

// Nobodys implements tiers.Files. A block for which names in other parts stood is nobody's once they do not; if a part has left the rounds
// since, they may be in that, and stand: the block stays for this run.
func (t *Tier) Nobodys(ids []block.ID) (nobodys []block.ID, err error) {
	if t.catalogue == nil {
		return nil, nil
	}
	var names map[block.ID][]block.Name
	var others map[block.ID]bool
	err = t.catalogue.Whole(func() (err error) {
		if t.catalogue.Partial() {
			return fmt.Errorf("lustre: %w: %w: not all that others left was read", tiers.ErrUnavailable, tiers.ErrNotNow)
		}
		names, others, err = t.catalogue.NamesOf(ids)
		return err
	})
	if err != nil {
		return nil, err // what was found may be wrong
	}
	return t.judge(ids, names, others), nil
}

// judge is Nobodys of what is known of names of blocks: names in this rank's files, and whether there are others.
func (t *Tier) judge(ids []block.ID, names map[block.ID][]block.Name, others map[block.ID]bool) (nobodys []block.ID) {
	left := t.catalogue.PartsLeft()
	t.stood.Lock()
	defer t.stood.Unlock()
	if t.stood.at == nil {
		t.stood.at = map[block.ID]uint64{}
	}
	for _, id := range ids {
		at, did := t.stood.at[id]
		switch {
		case len(names[id]) > 0 || did && at != left:
		case !others[id]:
			nobodys = append(nobodys, id)
			delete(t.stood.at, id)
		case !did:
			t.stood.at[id] = left
		}
	}
	return nobodys
}
