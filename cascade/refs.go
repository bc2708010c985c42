package cascade

import (
	"context"
	"sync"

	"cascadekv/cascade/content"
	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
)

// Refs returns how many names of the job stand for the bytes of a block, each counted once
// however many ranks have it. ns, key is one of them, or an id in directory.Contents, and
// info what Stat returned of it. The ranks asked are those that the homes of the id know:
// they keep the bytes or are about to write them. Not counted are the names of other ranks
// that have the bytes in memory only, those that a catalogue alone has, and what does not
// answer before ctx ends. It is one message to a home, and one to each such rank.
func Refs(ctx context.Context, s *Store, ns, key string, info NameInfo) int {
	peers := s.others.Peers
	if peers == nil || info.Size < content.Least || info.ID.IsProvisional() {
		return info.Refs
	}
	var union struct {
		sync.Mutex
		names map[residency.NameID]bool
	}
	union.names = map[residency.NameID]bool{}
	add := func(list []block.Name) {
		union.Lock()
		defer union.Unlock()
		for i := range list {
			union.names[residency.NameID{NS: list[i].Namespace, Key: list[i].Key}] = true
		}
	}
	if ns != directory.Contents {
		add([]block.Name{{Namespace: ns, Key: key}})
	}
	add(content.NamesOf(s.state, info.ID))
	var asked sync.WaitGroup
	for _, st := range peers.Locate(ctx, directory.Contents, []string{directory.ContentKey(info.ID)})[0] {
		asked.Go(func() {
			if list, err := s.content.NamesAt(ctx, st.Owner, info.ID); err == nil {
				add(list)
			}
		})
	}
	asked.Wait()
	return max(info.Refs, len(union.names))
}
