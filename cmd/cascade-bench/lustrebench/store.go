package lustrebench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"time"

	"cascadekv/cascade"
	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/internal/block"
	"cascadekv/lustre"
	"cascadekv/tiers"
	"cascadekv/tiers/host"
)

const (
	chainCount = 500
	chainBytes = 42 << 10

	chainMemory = 64 << 20
	chainSpace  = "bench"
)

// chain compares one GetBatch of a chain that is in segments only with as many
// Gets, one after the other.
func (b *bench) chain(ctx context.Context) (res Batch, err error) {
	s, err := newSet(chainCount, chainBytes, rand.Uint64())
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	keys := nameChain(s)
	dir := b.folder()
	if _, err := b.store(ctx, dir, s, 1); err != nil {
		return res, err
	}
	ways := []func(*cascade.Store) ([]*cascade.View, error){
		func(st *cascade.Store) ([]*cascade.View, error) { return st.GetBatch(ctx, chainSpace, keys) },
		func(st *cascade.Store) ([]*cascade.View, error) {
			views := make([]*cascade.View, len(keys))
			for i, key := range keys {
				views[i], _ = st.Get(ctx, chainSpace, key) // a miss is found with its bytes
			}
			return views, nil
		},
	}
	res, err = b.against(s, func(way int) (time.Duration, error) { return b.fromCold(ctx, dir, s, ways[way]) })
	return res, errors.Join(err, os.RemoveAll(dir))
}

// nameChain names the blocks of a set as one chain and returns their keys.
func nameChain(s *set) []string {
	keys := make([]string, len(s.items))
	for i := range s.items {
		keys[i] = fmt.Sprint("block", i)
		name := block.Name{Namespace: chainSpace, Key: keys[i], Depth: uint32(i), Seq: uint64(i + 1)}
		if i > 0 {
			name.Parent = keys[i-1]
		}
		s.items[i].Names = []block.Name{name}
	}
	return keys
}

// fromCold opens a store over the segments of a folder, with nothing in memory,
// and returns how long it takes to get the blocks of a set from it.
func (b *bench) fromCold(ctx context.Context, dir string, s *set, get func(*cascade.Store) ([]*cascade.View, error)) (took time.Duration, err error) {
	st, err := openCold(ctx, dir)
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, st.Close(ctx)) }()
	if err := kit.DropCache(dir); err != nil {
		return 0, err
	}
	began := time.Now()
	views, err := get(st)
	took = time.Since(began)
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	for i, v := range views {
		if v == nil || !bytes.Equal(v.Bytes(), s.items[i].Data) {
			err = fmt.Errorf("%w: block %d of a chain", kit.ErrWrong, i)
		}
		if v != nil {
			v.Release()
		}
	}
	return took, err
}

func openCold(ctx context.Context, dir string) (*cascade.Store, error) {
	m, err := host.Open(chainMemory)
	if err != nil {
		return nil, err
	}
	cold, err := lustre.Open(lustre.Options{Dir: dir})
	if err == nil {
		if err = m.WaitReady(ctx); err == nil {
			return cascade.Open(ctx, cascade.Options{Memory: []tiers.Memory{m}, Cold: cold, Log: slog.New(slog.DiscardHandler)})
		}
		err = errors.Join(err, cold.Close())
	}
	return nil, errors.Join(err, m.Close())
}
