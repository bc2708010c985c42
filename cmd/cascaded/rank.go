package main

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"

	"cascadekv/cascade"
	"cascadekv/dht"
	"cascadekv/internal/buildinfo"
	"cascadekv/internal/config"
	"cascadekv/internal/descriptors"
	"cascadekv/internal/preflight"
	"cascadekv/internal/server"
	"cascadekv/lustre"
	"cascadekv/lustre/segment"
	"cascadekv/tiers"
	"cascadekv/tiers/host"
	"cascadekv/tiers/landing"
	"cascadekv/tiers/memory"
)

// openedRank is a store with its server: what a process of this command is.
type openedRank struct {
	store   *cascade.Store
	server  *server.Server
	peers   *peers        // nil: the rank is alone
	adopter *adopter      // of a rank that is alone
	landing *landing.Pool // nil without peers
	arena   *arenaFile
	lost    sync.Once // the arena was
	program program
	log     *slog.Logger
	failed  chan error // capacity 1: it can not go on

	turn sync.Mutex // held by what ends this program: Shutdown, or an upgrade

	background     sync.WaitGroup // ends before the store is closed
	stopBackground context.CancelFunc

	limits sync.Mutex
	config config.Config
	secret string // the password of clients
	ranks  int    // that share lustre.budget
}

var errReplaced = errors.New("another process has this rank's number now: give each rank its own, peers.* and rank in the configuration")

// assemble puts a rank together: tiers, store, server.
func (p program) assemble(ctx context.Context, c config.Config, password string, log *slog.Logger) (opened rank, err error) {
	p.tell(log)
	if p.state != nil {
		ctx = context.WithoutCancel(ctx) // what an earlier program had must be drained before the end
	} else if err := checkNode(c, log); err != nil {
		return nil, err
	}
	o := cascade.Options{
		FirstEvent: p.firstEvent(),
		Policy:     c.Policy, IDBits: c.IDBits, SkipVerify: !c.VerifyReads, Limits: storeLimits(c, 1), Log: log,
	}
	file, err := p.openArena(c, log)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			file.abandon()
		}
	}()
	if err := openTiers(&o, c, file.tier, log); err != nil {
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
	r := &openedRank{store: store, arena: file, landing: pool, program: p, log: log, failed: make(chan error, 1), config: c, secret: password, ranks: 1}
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	r.stopBackground = stop
	r.background.Go(func() { (&refusedLog{log: log}).watch(work.Done(), o.Cold) })
	r.background.Go(func() { r.watchArena(work) })
	if c.Lustre.IndexTuning == "auto" {
		r.background.Go(func() { tuneIndex(work, o.Cold, log) })
	}
	if c.Peers.Fabric == "off" {
		r.adoptAlone(work)
	} else {
		if r.peers, err = joinPeers(ctx, c, store, p.seeds(), r.resize, log); err != nil {
			return nil, errors.Join(err, r.close(ctx))
		}
	}
	r.watchLate(work, o.Cold)
	r.server, err = server.New(server.Options{
		Store: store, Node: r.node(), Socket: c.Socket, Listen: c.Listen, Admin: c.Admin.Listen, AllowUIDs: c.AllowUIDs,
		Version: buildinfo.Version(), Limits: serverLimits(c, password, openFiles(c, log)), Log: log, Lend: lends(c), Spin: c.Resp.Spin.Std(),
		Inherited: p.state, Upgrade: r.upgrade,
	})
	r.program.state = nil
	if err != nil {
		return nil, errors.Join(err, r.close(ctx))
	}
	return r, nil
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

// openTiers opens the configured tiers but shm, which is open, and lists them
// fastest first. Those that are open when one fails are the caller's to close.
func openTiers(o *cascade.Options, c config.Config, shm *memory.Tier, log *slog.Logger) error {
	o.Memory = append(o.Memory, shm)
	if c.Host.Bytes > 0 {
		t, err := memory.Open(memory.Options{Name: host.Name, Bytes: int64(c.Host.Bytes), Left: preflight.Here(nil).Left})
		if err != nil {
			return err
		}
		o.Memory = slices.Insert(o.Memory, 0, tiers.Memory(t))
	}
	if c.Lustre.Dir == "" {
		return nil
	}
	striper, err := newStriper(c.Lustre, log)
	if err != nil {
		return err
	}
	group, err := groupOf(c.Lustre)
	if err != nil {
		return err
	}
	cold, err := lustre.Open(lustre.Options{
		Dir: c.Lustre.Dir, Group: group, Rank: uint32(c.Rank), SegmentBytes: int64(c.Lustre.SegmentBytes), Layout: striper,
		SegmentBlocks: segmentBlocks, MaxOpenFiles: openFiles(c, nil).Files,
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
	logExposed(c.Lustre, a, log)
	log.Info("lustre access", "direct", a.Direct, "no_direct", a.NoDirect, "io_uring", a.Uring, "no_io_uring", a.NoUring)
	return nil
}

// tellOfRoom tells once that others left shm no room for all that is configured,
// and whose old arenas take it; and once that it came.
func (a *arenaFile) tellOfRoom() {
	ctx := context.Background() // the tier's end ends both waits
	shm, log := a.tier, a.log
	err := shm.WaitReady(ctx)
	if err == nil || errors.Is(err, tiers.ErrClosed) {
		return
	}
	logOthers(a.log, a.keeper.Path(), slog.LevelWarn)
	ready, wanted, _ := shm.Ready()
	log.Error("shm is smaller than configured, and grows when there is room", "ready", ready, "configured", wanted, "err", err)
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

// serverLimits are those of the configuration, as far as the descriptors reach.
func serverLimits(c config.Config, password string, files descriptors.Split) server.Limits {
	return server.Limits{
		Password: password, MaxConnections: min(c.MaxConnections, files.Connections), Shared: files.Shared, Lease: c.Lease.Std(), FixedMiss: c.Resp.NativeMiss == "auto",
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
	r.config, r.secret = c, password
	r.store.SetLimits(storeLimits(c, r.ranks))
	r.limits.Unlock()
	r.server.SetLimits(serverLimits(c, password, openFiles(c, r.log)))
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
	if r.peers != nil {
		r.peers.ending.Store(true)
	}
	err := r.server.Shutdown(ctx)
	var drained error
	if r.peers != nil {
		// What is in the shared file system stays readable by the others.
		_, drained = r.store.Drain(ctx)
		r.peers.leave(ctx)
	}
	blocks := r.arena.tier.Usage().Blocks
	drained = errors.Join(drained, r.close(ctx))
	r.limits.Lock()
	c := r.config
	r.limits.Unlock()
	r.arena.end(c, r.store.Stats(), blocks, drained)
	return errors.Join(err, drained)
}
