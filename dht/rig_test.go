package dht

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
	"cascadekv/dht/fabric/sim"
	"cascadekv/dht/ring"
	"cascadekv/internal/block"
)

// shelf is the least that a rank's store can be: named bytes, each in a place
// of its own. cascade's tests run nodes over real stores.
type shelf struct {
	rank fabric.Rank
	node *Node

	mu        sync.Mutex
	version   uint64
	names     map[string]directory.Statement
	bytes     map[uint64][]byte // by generation
	entrusted []directory.Statement
	touched   []string

	restless int // how many times more a block moves when its place was asked for
}

func (s *shelf) Hold(src fabric.Source) (fabric.Hold, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.bytes[src.Generation]
	if !ok || src.Offset < 0 || src.Length < 0 || src.Offset > int64(len(b)) || src.Length > int64(len(b))-src.Offset {
		return nil, fabric.ErrStale
	}
	return held(b[src.Offset : src.Offset+src.Length]), nil
}

type held []byte

func (h held) Bytes() []byte { return h }
func (h held) Release()      {}

func (s *shelf) State(namespace, key string) directory.Statement {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.names[key]
	s.version++
	st.Name.Namespace, st.Name.Key, st.Version = namespace, key, s.version
	if s.restless > 0 && st.Memory != nil {
		s.restless--
		moved, there := s.names[key], *st.Memory
		there.Generation += 1 << 40
		s.bytes[there.Generation] = s.bytes[st.Memory.Generation]
		delete(s.bytes, st.Memory.Generation)
		moved.Memory = &there
		s.names[key] = moved
	}
	return st
}

func (s *shelf) Names(want func(namespace, key string) bool, fn func(directory.Statement)) {
	s.mu.Lock()
	var keys []string
	for k := range s.names {
		if want("ns", k) {
			keys = append(keys, k)
		}
	}
	s.mu.Unlock()
	for _, k := range keys {
		if st := s.State("ns", k); st.Has() {
			fn(st)
		}
	}
}

func (s *shelf) Outdated(_, key string, before uint64) {
	s.mu.Lock()
	st, ok := s.names[key]
	gone := ok && st.Name.Seq < before
	if gone {
		delete(s.names, key)
	}
	s.mu.Unlock()
	if gone {
		go s.node.Publish(s.State("ns", key)) // the store publishes in the background too
	}
}

func (s *shelf) Expires(_ context.Context, _, key string, at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.names[key]
	if st.Name.Expires = at; ok {
		s.names[key] = st
	}
	return ok
}

func (s *shelf) Touched(_ string, keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.touched = append(s.touched, keys...)
}

func (s *shelf) NamesOf(id block.ID) (list []block.Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.names {
		if st.Info.ID == id {
			list = append(list, st.Name)
		}
	}
	return list
}

func (s *shelf) Entrust(_ context.Context, list []directory.Statement) (refused []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range list {
		if _, ok := s.names[list[i].Name.Key]; ok {
			refused = append(refused, i)
			continue
		}
		s.entrusted = append(s.entrusted, list[i])
	}
	return refused
}

func (s *shelf) Cleared(_ string, _ bool, before uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.names, func(_ string, st directory.Statement) bool { return st.Name.Seq < before })
}

func (s *shelf) Status() []byte { return []byte(`{"rank":true}`) }

func (s *shelf) has(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.names[key]
	return ok
}

// keep puts bytes on the shelf without telling anybody.
func (s *shelf) keep(key string, stamp uint64, data []byte, segment bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	generation := uint64(s.rank)<<32 | s.version
	st := directory.Statement{
		Name:   block.Name{Namespace: "ns", Key: key, Seq: stamp},
		Info:   block.Info{ID: block.Sum(block.Bits128, data), Size: int64(len(data)), CRC: block.CRC(data)},
		Memory: &directory.Memory{Generation: generation},
	}
	if segment {
		st.Segment = &directory.Segment{Path: fmt.Sprintf("of %d", s.rank)}
	}
	s.names[key], s.bytes[generation] = st, data
}

// put keeps bytes and publishes them.
func (s *shelf) put(key string, stamp uint64, data []byte, segment bool) {
	s.keep(key, stamp, data, segment)
	s.node.Publish(s.State("ns", key))
}

// rig is several nodes over the sim fabric.
type rig struct {
	t     *testing.T
	world *sim.World
	nodes map[fabric.Rank]*Node
	shelf map[fabric.Rank]*shelf
}

const (
	callDeadline = 100 * time.Millisecond
	readDeadline = 400 * time.Millisecond
	settle       = 5 * time.Second
)

// inBubble runs f over a job of ranks, in virtual time.
func inBubble(t *testing.T, ranks int, o sim.Options, f func(*testing.T, *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, world: sim.New(o), nodes: map[fabric.Rank]*Node{}, shelf: map[fabric.Rank]*shelf{}}
		for i := range ranks {
			r.start(fabric.Rank(i), 1)
		}
		defer func() {
			for _, n := range r.nodes {
				if err := n.Close(); err != nil {
					t.Error(err)
				}
			}
			synctest.Wait()
		}()
		r.tell(r.members(fabric.Alive, r.ranks()...)...)
		time.Sleep(settle + 2*time.Second)
		f(t, r)
	})
}

func (r *rig) start(rank fabric.Rank, incarnation uint64) {
	s := &shelf{rank: rank, names: map[string]directory.Statement{}, bytes: map[uint64][]byte{}}
	n, err := New(Options{
		Fabric: r.world.Join(rank, incarnation), Incarnation: incarnation, Log: slog.New(slog.DiscardHandler),
		CallDeadline: callDeadline, ReadDeadline: readDeadline, Settle: settle, Ring: sharedRing,
	}, s)
	if err != nil {
		r.t.Fatal(err)
	}
	s.node = n
	r.nodes[rank], r.shelf[rank] = n, s
}

func (r *rig) ranks() (all []fabric.Rank) {
	for i := range r.nodes {
		all = append(all, i)
	}
	slices.Sort(all)
	return all
}

func (r *rig) members(state fabric.State, ranks ...fabric.Rank) (all []Member) {
	for _, i := range ranks {
		m := Member{Rank: i, Incarnation: 1, State: state}
		if n := r.nodes[i]; n != nil {
			m.Incarnation = n.Incarnation()
		}
		all = append(all, m)
	}
	return all
}

// tell has all nodes know members.
func (r *rig) tell(members ...Member) {
	for _, n := range r.nodes {
		n.SetMembers(members...)
	}
}

// die kills a rank and has the others know.
func (r *rig) die(rank fabric.Rank) {
	r.world.Kill(rank)
	m := r.members(fabric.Gone, rank)
	n := r.nodes[rank]
	delete(r.nodes, rank)
	delete(r.shelf, rank)
	if err := n.Close(); err != nil {
		r.t.Error(err)
	}
	r.tell(m...)
}

// settled lets all that is under way arrive.
func (r *rig) settled() {
	r.t.Helper()
	time.Sleep(10 * time.Millisecond)
	for _, n := range r.nodes {
		if !n.Settled(r.t.Context()) {
			r.t.Fatal("not settled")
		}
	}
	time.Sleep(100 * time.Millisecond) // and negative answers be forgotten
}

// locate asks a node for one key.
func (r *rig) locate(rank fabric.Rank, key string) []directory.Statement {
	return r.nodes[rank].Locate(context.Background(), "ns", []string{key})[0]
}

// owners checks who is known to have a key, on a rank that is none of them.
func (r *rig) owners(rank fabric.Rank, key string, want ...fabric.Rank) {
	r.t.Helper()
	var got []fabric.Rank
	for _, s := range r.locate(rank, key) {
		got = append(got, s.Owner)
	}
	if !slices.Equal(got, want) {
		r.t.Errorf("%v knows %v to have %q, want %v", rank, got, key, want)
	}
}

// homed returns a key with the given primary and replica.
func (r *rig) homed(primary, replica fabric.Rank) string {
	r.t.Helper()
	v := r.nodes[primary].view.Load()
	for i := range 100_000 {
		key := fmt.Sprintf("key %d", i)
		if slices.Equal(v.homes("ns", key), []fabric.Rank{primary, replica}) {
			return key
		}
	}
	r.t.Fatalf("no key has homes %v and %v", primary, replica)
	return ""
}

// messages is how many requests and answers a rank has sent, and to how it got.
func (r *rig) messages(rank fabric.Rank) int64 { return r.world.Stats()[rank].MessagesSent }

// took runs f and returns how long it took.
func took(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

func bytesOf(key string, version int) []byte {
	return fmt.Appendf(nil, "%s in version %d", key, version)
}

var rings sync.Map // by the ranks

// sharedRing makes each ring once: with the race detector it takes a while.
func sharedRing(_ *ring.Ring, ranks []fabric.Rank) (*ring.Ring, error) {
	slices.Sort(ranks)
	if r, ok := rings.Load(fmt.Sprint(ranks)); ok {
		return r.(*ring.Ring), nil
	}
	r, err := ring.New(ranks, 2)
	rings.Store(fmt.Sprint(ranks), r)
	return r, err
}

// readOne reads one block.
func readOne(t *testing.T, n *Node, copies []directory.Statement, dst []byte) error {
	one := []directory.Read{{Copies: copies, Dst: dst}}
	n.Read(t.Context(), one)
	return one[0].Err
}
