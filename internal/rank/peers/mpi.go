package peers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"cascadekv/cascade"
	"cascadekv/dht/fabric"
	"cascadekv/dht/fabric/mixed"
	"cascadekv/internal/arena"
)

// world is the MPI world that this process was started in.
type world interface {
	rank() int
	size() int
	share(p []byte) ([]byte, error)  // returns rank 0's p on all ranks
	fabric(oneSided) (linked, error) // the world must outlive it
	// close ends MPI. A world is incomplete when some of its ranks ended before.
	close(incomplete bool) error
}

// linked is a fabric that describes itself.
type linked interface {
	fabric.Fabric
	Link() string
}

// openMPI joins the ranks that were started together. Rank 0 shares what TCP ranks
// have from their configuration, a seed and a secret, and its incarnation, by which all know
// each other for ranks of this world. Who comes later comes over TCP.
func (p *Peers) openMPI(ctx context.Context, secret string) (err error) {
	c, log := &p.o.Config, p.o.Log
	p.world, err = together(ctx, log, func() (world, error) { return startWorld(c.Deadline.Drain.Std(), log) })
	if err != nil {
		return err
	}
	if first := p.world.rank(); first != c.Rank {
		return fmt.Errorf("rank = %d, but this is rank %d of its MPI world: leave rank out of the configuration", c.Rank, first)
	}
	p.worldSize = p.world.size()
	var guests tcpLink
	defer func() {
		if err != nil && p.node == nil && guests.Fabric != nil {
			err = errors.Join(err, guests.Close())
		}
	}()
	seeds := c.Peers.SeedList()
	var own []byte
	if c.Rank == 0 {
		if secret == "" {
			secret = rand.Text()
		}
		if guests, err = p.listen(ctx, secret); err != nil {
			return err
		}
		if err := p.gossip(ctx, secret, seeds); err != nil {
			return err
		}
		own = invitation{p.self.Incarnation, p.GossipAddr(), secret}.encode()
	}
	w := p.world
	shared, err := together(ctx, log, func() ([]byte, error) { return w.share(own) })
	if errors.Is(err, errNotTogether) {
		p.world = nil // its thread is in that call: only the process's end ends it
	}
	if err != nil {
		return err
	}
	from, err := decodeInvitation(shared)
	if err != nil {
		return err
	}
	if c.Rank != 0 {
		p.self.Incarnation = from.incarnation
		if guests, err = p.listen(ctx, from.secret); err != nil {
			return err
		}
	}
	exposed, err := p.expose()
	if err != nil {
		return err
	}
	fab, err := p.world.fabric(exposed)
	if err != nil {
		return err
	}
	both := mixed.New(mixed.Options{World: fab, Size: p.worldSize, Incarnation: from.incarnation, Guests: guests})
	if err := p.serve(mixedLink{both, fab.Link() + "; other ranks over tcp: " + guests.Link()}); err != nil || c.Rank == 0 {
		return err
	}
	return p.gossip(ctx, from.secret, append(seeds, from.seed))
}

// mixedLink describes both fabrics in the rank's statistics.
type mixedLink struct {
	*mixed.Fabric
	text string
}

func (l mixedLink) Link() string { return l.text }

// invitation is what rank 0 shares with its world.
type invitation struct {
	incarnation uint64
	seed        string // its gossip
	secret      string
}

func (i invitation) encode() []byte {
	return fmt.Appendf(nil, "%d %s %s", i.incarnation, i.seed, i.secret)
}

func decodeInvitation(p []byte) (i invitation, err error) {
	words := strings.SplitN(string(p), " ", 3)
	if len(words) == 3 {
		i.seed, i.secret = words[1], words[2]
		i.incarnation, err = strconv.ParseUint(words[0], 10, 64)
	}
	if len(words) != 3 || err != nil {
		return i, errors.New("rank 0 of this MPI world shares something else: run one version of cascaded on all nodes")
	}
	return i, nil
}

// oneSided is memory that other ranks may copy from by themselves.
type oneSided struct {
	from   int64 // the least size of such a read, in bytes; 0: none
	region uint32
	memory []byte
}

// expose maps the store's memory once more, for as long as the process lives:
// others may copy from it while the store closes.
func (p *Peers) expose() (oneSided, error) {
	o := oneSided{from: int64(p.o.Config.Peers.OneSided)}
	if o.from == 0 {
		return o, nil
	}
	region, file, size := cascade.Local{Store: p.o.Store}.SharedFile()
	memory, err := arena.MapShared(file, size)
	if err != nil {
		return o, fmt.Errorf("peers.one_sided_from: %w; set it to 0", err)
	}
	o.region, o.memory = region, memory
	return o, nil
}

// How long a rank waits for the others to start before it logs that, and before it
// gives up. They first read the indexes of their segments.
const (
	togetherWarn  = 30 * time.Second
	togetherLimit = 15 * time.Minute
)

var errNotTogether = errors.New("the ranks of this MPI world are not all there; see the logs of the others")

// together makes a call into MPI that returns when all ranks make it. Nothing else
// ends it: when ctx ends, or after togetherLimit, it is left behind, and only the
// process's end ends its thread.
func together[T any](ctx context.Context, log *slog.Logger, call func() (T, error)) (none T, err error) {
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		v, err := call()
		done <- outcome{v, err}
	}()
	ctx, cancel := context.WithTimeout(ctx, togetherLimit)
	defer cancel()
	warn := time.NewTicker(togetherWarn)
	defer warn.Stop()
	for {
		select {
		case o := <-done:
			return o.value, o.err
		case <-ctx.Done():
			return none, fmt.Errorf("%w: %w", errNotTogether, ctx.Err())
		case <-warn.C:
			log.Warn("waiting for the other ranks of this MPI world; did one of them not start?")
		}
	}
}
