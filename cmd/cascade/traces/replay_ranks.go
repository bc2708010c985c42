package traces

import (
	"context"
	"errors"
	"io"
	"log/slog"

	"cascadekv/cascade"
	"cascadekv/dht"
	"cascadekv/dht/fabric"
	"cascadekv/dht/fabric/sim"
	"cascadekv/internal/replay"
)

// openRanks makes several ranks in this process that share the capacity and
// one lustre directory. Messages between them take no time: what is measured
// is where blocks end up, not a network.
func (f replayFlags) openRanks(ctx context.Context, shmDir, policy string, blocks int64, clock *replay.Clock) (replay.Target, error) {
	world := sim.New(sim.Options{})
	each := max(1, blocks/int64(f.ranks))
	var members []dht.Member
	var nodes []*dht.Node
	var targets []replay.Target
	failed := func(err error) (replay.Target, error) {
		return nil, errors.Join(err, replay.NewGroupTarget(replay.GroupOptions{}, targets...).Close(ctx))
	}
	var first *scratchTiers
	for i := range f.ranks {
		s := &scratchTiers{shmDir: shmDir, rank: i, clock: clock}
		if first != nil {
			s.dir, s.shared = first.dir, true
		}
		store, err := s.open(ctx, f, policy, each)
		if err != nil {
			return failed(errors.Join(err, s.remove()))
		}
		rank := fabric.Rank(i)
		node, err := dht.New(dht.Options{
			Fabric: world.Join(rank, 1), Incarnation: 1, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		}, cascade.Local{Store: store})
		if err != nil {
			return failed(errors.Join(err, s.close(store), s.remove()))
		}
		store.Join(node)
		targets = append(targets, f.target(store, s, each, node.Close))
		nodes = append(nodes, node)
		members = append(members, dht.Member{Rank: rank, Incarnation: 1})
		if first == nil {
			first = s
		}
	}
	for _, n := range nodes {
		n.SetMembers(members...)
	}
	return replay.NewGroupTarget(replay.GroupOptions{}, targets...), nil
}
