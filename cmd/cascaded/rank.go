package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"cascadekv/cascade"
	"cascadekv/dht"
	"cascadekv/dht/fabric"
	"cascadekv/internal/buildinfo"
	"cascadekv/internal/config"
	"cascadekv/internal/server"
	"cascadekv/lustre/segment"
	"cascadekv/tiers"
	"cascadekv/tiers/host"
	"cascadekv/tiers/landing"
	"cascadekv/tiers/lustre"
	"cascadekv/tiers/memory"
	"cascadekv/tiers/shm"
)

// openedRank is a store with its server: what a process of this command is.
type openedRank struct {
	store   *cascade.Store
	server  *server.Server
	peers   *peers        // nil: the rank is alone
	landing *landing.Pool // nil without peers
	program program
	log     *slog.Logger
	failed  chan error // capacity 1: it can not go on

	turn sync.Mutex // held by what ends this program: Shutdown, or an upgrade

	background     sync.WaitGroup // ends before the store is closed
	stopBackground context.CancelFunc

	limits sync.Mutex
	config config.Config
	ranks  int // that share lustre.budget
}

var errReplaced = errors.New("another process has this rank's number now: give each rank its own, peers.* and rank in the configuration")

// open puts a rank together: tiers, store, server.
func (p program) open(ctx context.Context, c config.Config, password string, log *slog.Logger) (rank, error) {
	p.tell(log)
	if p.state != nil {
		ctx = context.WithoutCancel(ctx) // what an earlier program had must be drained before the end
	}
	o := cascade.Options{
		FirstEvent: p.firstEvent(),
		Policy:     c.Policy, IDBits: c.IDBits, SkipVerify: !c.VerifyReads, Limits: storeLimits(c, 1), Log: log,
	}
	if err := openTiers(&o, c, p.claims(), log); err != nil {
		return nil, errors.Join(err, closeTiers(o))
	}
	pool, err := openLanding(&o, c)
	if err != nil {
		return nil, errors.Join(err, closeTiers(o))
	}
	store, err := cascade.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	logSkipped(o.Cold, log)
	if r := store.Stats().Recovered; r.Blocks > 0 {
		log.Info("recovered", "blocks", r.Blocks, "names", r.Names, "bytes", r.Bytes)
	}
	r := &openedRank{store: store, landing: pool, program: p, log: log, failed: make(chan error, 1), config: c, ranks: 1}
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	r.stopBackground = stop
	if c.Lustre.IndexTuning == "auto" {
		r.background.Go(func() { tuneIndex(work, o.Cold, log) })
	}
	if c.Peers.Fabric == "off" {
		r.adoptAlone(ctx, work, log)
	} else {
		if r.peers, err = joinPeers(ctx, c, store, p.seeds(), r.resize, log); err != nil {
			return nil, errors.Join(err, r.close(ctx))
		}
	}
	r.server, err = server.New(server.Options{
		Store: store, Node: r.node(), Socket: c.Socket, Listen: c.Listen, Admin: c.Admin.Listen, AllowUIDs: c.AllowUIDs,
		Version: buildinfo.Version(), Limits: serverLimits(c, password), Log: log, Lend: lends(c), Spin: c.Resp.Spin.Std(),
		Inherited: p.state, Upgrade: r.upgrade,
	})
	r.program.state = nil
	if err != nil {
		return nil, errors.Join(err, r.close(ctx))
	}
	return r, nil
}

// adoptAlone takes in what others left, now, and until work ends what they add.
func (r *openedRank) adoptAlone(ctx, work context.Context, log *slog.Logger) {
	if r.config.Lustre.Dir == "" || r.config.Lustre.Index == "off" {
		return // all was recovered
	}
	a := newAdopter(r.store, fabric.Rank(r.config.Rank), log)
	a.adopt(ctx)
	r.background.Go(func() { a.run(work, adoptEvery) })
}

// node is nil for a rank that is alone.
func (r *openedRank) node() *dht.Node {
	if r.peers == nil {
		return nil
	}
	return r.peers.node
}

// close ends what is open: the store before the peers it uses.
func (r *openedRank) close(ctx context.Context) error {
	if r.peers != nil {
		r.peers.stopAdopting()
	}
	r.stopBackground()
	r.background.Wait()
	err := r.store.Close(ctx)
	if r.peers != nil {
		r.peers.close()
	}
	if r.landing != nil {
		err = errors.Join(err, r.landing.Close())
	}
	return err
}

// openTiers opens the configured tiers, fastest first. Those that are open
// when one fails are the caller's to close.
func openTiers(o *cascade.Options, c config.Config, claims []tiers.Claim, log *slog.Logger) error {
	if c.Host.Bytes > 0 {
		t, err := host.Open(int64(c.Host.Bytes))
		if err != nil {
			return err
		}
		o.Memory = append(o.Memory, t)
	}
	t, err := shm.Open(c.Shm.Path, int64(c.Shm.Bytes), claims...)
	if err != nil {
		return err
	}
	o.Memory = append(o.Memory, t)
	go tellOfRoom(t, log)
	if c.Lustre.Dir == "" {
		return nil
	}
	striper, err := newStriper(c.Lustre, log)
	if err != nil {
		return err
	}
	cold, err := lustre.Open(lustre.Options{
		Dir: c.Lustre.Dir, Rank: uint32(c.Rank), SegmentBytes: int64(c.Lustre.SegmentBytes), SegmentBlocks: segmentBlocks, Layout: striper,
		OwnOnly:  c.Peers.Fabric != "off" || c.Lustre.Index != "off", // the adopters of the job share the rest
		Apart:    c.Lustre.Index != "off",
		Inherits: c.Lustre.Budget > 0,
		Compress: c.Lustre.Codec == "auto",
		Direct:   switchOf(c.Lustre.Direct), Uring: switchOf(c.Lustre.IOUring), Advice: adviserOf(c.Lustre),
	})
	if err != nil {
		return err
	}
	if c.Lustre.Index != "off" {
		openCatalogue(cold, c, log)
	}
	o.Cold = cold
	a := cold.Access()
	logFileSystem(c.Lustre, a, log)
	log.Info("lustre access", "direct", a.Direct, "no_direct", a.NoDirect, "io_uring", a.Uring, "no_io_uring", a.NoUring)
	return nil
}

// tellOfRoom tells once that others left shm no room for all that is configured,
// and once that it came.
func tellOfRoom(shm *memory.Tier, log *slog.Logger) {
	ctx := context.Background() // the tier's end ends both waits
	err := shm.WaitReady(ctx)
	if err == nil {
		return
	}
	ready, wanted, _ := shm.Ready()
	log.Error("shm is smaller than configured, and grows when there is room: free space in its file system or lower shm.bytes",
		"ready", ready, "configured", wanted, "err", err)
	if shm.WaitGrown(ctx) == nil {
		log.Info("shm has grown to what is configured", "bytes", wanted)
	}
}

// switchOf reads a validated word of the configuration.
func switchOf(word string) segment.Switch {
	switch word {
	case "on":
		return segment.On
	case "off":
		return segment.Off
	}
	return segment.Auto
}

// openLanding gives a rank with peers room for what it reads from them and does
// not keep.
func openLanding(o *cascade.Options, c config.Config) (*landing.Pool, error) {
	if c.Peers.Fabric == "off" {
		return nil, nil
	}
	pool, err := landing.New(int64(c.Peers.Landing))
	if err != nil {
		return nil, err
	}
	o.Landing = func(size int64) ([]byte, func(), bool) {
		room, ok := pool.Take(size)
		if !ok {
			return nil, nil, false
		}
		return room.Bytes(), room.Release, true
	}
	return pool, nil
}

// leftOut is said of a file of which not everything can be read.
const leftOut = "lustre file left out, or in part: its blocks are misses, everything else is served; cascade fsck can repair some, and a file of a later version needs that version"

// logSkipped tells of each file that recovery left out. The rank does without
// what they hold.
func logSkipped(cold tiers.Tier, log *slog.Logger) {
	t, ok := cold.(*lustre.Tier)
	if !ok {
		return
	}
	for _, err := range t.Skipped() {
		log.Warn(leftOut, "err", err)
	}
}

func closeTiers(o cascade.Options) error {
	var err error
	for _, m := range o.Memory {
		err = errors.Join(err, m.Close())
	}
	return err
}

// segmentBlocks bounds the blocks of a segment, which is full of small ones before
// it is large: what is known of an unfinished one takes heap for each, and what is
// dead in it is read at the next start.
const segmentBlocks = 32 << 10

func storeLimits(c config.Config, ranks int) cascade.Limits {
	return cascade.Limits{
		ColdBytes:    int64(c.Lustre.Budget) / int64(ranks),
		NameBytes:    c.NameBytes(),
		RoomDeadline: c.Deadline.Room.Std(), FetchDeadline: c.Deadline.Fetch.Std(), CleanAbove: c.CleanAbove,
	}
}

func serverLimits(c config.Config, password string) server.Limits {
	return server.Limits{
		Password: password, MaxConnections: c.MaxConnections, Lease: c.Lease.Std(), FixedMiss: c.Resp.NativeMiss == "auto",
	}
}

// lends tells whether values may be sent by reference. Over MPI they may not: a
// network adapter may know the memory by its address.
func lends(c config.Config) bool { return c.Resp.ByReference == "auto" && c.Peers.Fabric != "mpi" }

// Serve implements rank.
func (r *openedRank) Serve(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var replaced <-chan struct{}
	if r.peers != nil {
		replaced = r.peers.replaced
	}
	go func() {
		select {
		case <-replaced:
			stop(errReplaced)
		case err := <-r.failed:
			stop(err)
		case <-ctx.Done():
		}
	}()
	err := r.server.Serve(ctx)
	if cause := context.Cause(ctx); errors.Is(cause, errReplaced) || errors.Is(cause, errLeft) {
		return cause
	}
	return err
}

// Reload implements rank.
func (r *openedRank) Reload(c config.Config, password string) {
	r.limits.Lock()
	r.config = c
	r.store.SetLimits(storeLimits(c, r.ranks))
	r.limits.Unlock()
	r.server.SetLimits(serverLimits(c, password))
	r.server.Reloaded()
}

// resize gives this rank its share among so many.
func (r *openedRank) resize(ranks int) {
	r.limits.Lock()
	defer r.limits.Unlock()
	if r.ranks != ranks && ranks > 0 {
		r.ranks = ranks
		r.store.SetLimits(storeLimits(r.config, ranks))
	}
}

// ReloadFailed implements rank.
func (r *openedRank) ReloadFailed() { r.server.ReloadFailed() }

// Shutdown implements rank.
func (r *openedRank) Shutdown(ctx context.Context) error {
	r.turn.Lock() // an upgrade that has begun tells the next program to end
	defer r.turn.Unlock()
	err := r.server.Shutdown(ctx)
	if r.peers != nil {
		// What is in the shared file system stays readable by the others.
		_, drained := r.store.Drain(ctx)
		err = errors.Join(err, drained)
		r.peers.leave(ctx)
	}
	return errors.Join(err, r.close(ctx))
}
