package cascade

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"cascadekv/cascade/eviction"
	"cascadekv/cascade/names"
	"cascadekv/cascade/policy"
	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// Put stores keyData ‖ valueData under e by content (CASCADE Algorithm 1): the
// id is computed at once, and bytes that are stored already get one more name
// and are not copied again. The slices are only read.
// Errors: ErrNoRoom, ErrTooLarge, ErrCondition, ErrBadEntry.
func (s *Store) Put(ctx context.Context, e Entry, keyData, valueData []byte) (PutResult, error) {
	res, _, err := s.put(ctx, e, keyData, valueData, single)
	return res, err
}

// scope is what request of the policies a put belongs to.
type scope bool

const (
	single  scope = true  // one of its own
	batched scope = false // one for several puts, which the caller passes
)

// passLocked passes the policies the request of a put that has one of its own; n is
// nil where it failed.
func (sc scope) passLocked(r *residency.Requests, n *names.Name) {
	if n != nil && sc == single {
		r.StoredLocked(Hint{}, n)
	}
}

// put is Put in either scope.
func (s *Store) put(ctx context.Context, e Entry, keyData, valueData []byte, sc scope) (PutResult, *names.Name, error) {
	if err := e.Check(); err != nil {
		return PutResult{}, nil, err
	}
	id := block.Sum(s.state.IDBits, keyData, valueData)
	if n, err := s.addName(ctx, e, id, sc); n != nil || err != nil {
		return PutResult{ID: id, Duplicate: true}, n, err
	}
	st, err := s.Stage(ctx, int64(len(keyData)+len(valueData)))
	if err != nil {
		Refused(s, e.Namespace, e.Key, err)
		return PutResult{}, nil, err
	}
	st.Append(keyData)
	st.Append(valueData)
	n, dup, err := st.commit(ctx, e, id, sc)
	return PutResult{ID: id, Duplicate: dup}, n, err
}

// addName points e at the block id if that is stored here; nil if it is not.
func (s *Store) addName(ctx context.Context, e Entry, id BlockID, sc scope) (*names.Name, error) {
	elsewhere := s.elsewhere(ctx, &e)
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	if err := s.state.CheckOpenLocked(); err != nil {
		return nil, err
	}
	b := s.state.Mu.Blocks[id]
	if b == nil {
		return nil, nil
	}
	n, err := s.renameLocked(&e, b, elsewhere)
	refusedLocked(s, e.Namespace, e.Key, err)
	sc.passLocked(&s.state.Requests, n)
	return n, err
}

// renameLocked points e at b, which is stored here: a duplicate put.
func (s *Store) renameLocked(e *Entry, b *residency.Block, elsewhere bool) (*names.Name, error) {
	if err := s.allowedLocked(e, elsewhere); err != nil {
		return nil, err
	}
	b.Busy++ // replacing the last other name, or making room for this one, must not forget b
	if err := s.nameRoom.MakeRoomLocked(e.Namespace, e.Key); err != nil {
		b.Busy--
		s.state.ForgetLocked(b)
		s.state.Count.Stats.Rejected++
		return nil, err
	}
	alias := b.IsAlias(s.state.Mu.Names.Get(e.Namespace, e.Key), e.Namespace)
	n := s.here.bindLocked(e, b, s.state.Now())
	b.Generated = b.Generated && e.Generated
	b.Busy--
	s.state.Count.PutLocked(n)
	s.state.Count.DuplicateLocked(n, alias)
	return n, nil
}

// allowedLocked checks a put's condition; elsewhere: other ranks have
// the name.
func (s *Store) allowedLocked(e *Entry, elsewhere bool) error {
	if e.When == Always {
		return nil
	}
	if exists := elsewhere || s.state.LookupLocked(e.Namespace, e.Key) != nil; exists != (e.When == IfPresent) {
		return ErrCondition
	}
	return nil
}

// Stage is room for an arriving block. It belongs to one goroutine, which must
// end it with Commit or Abort.
type Stage struct {
	store  *Store
	mem    *residency.Level
	slot   tiers.Slot
	buffer *buffer // holds the bytes until commit writes them to the slot; nil: the slot itself is filled
	size   int64
	filled int64
	id     BlockID // of a block that lies in its place already: see Direct
	failed error   // of the slot
	crc    uint32  // of what is filled
	done   bool
	given  bool // slot.Commit was called: the slot is stored or gone
	kept   bool // held for long: no request under way any more
}

// StageOption changes where a stage lies.
type StageOption uint8

// InArena has a stage lie in the arena, for other processes to map.
const InArena StageOption = 1

// Stage reserves room for size bytes in the fastest tier that admits them.
// The bytes may arrive piecemeal and are put by name: the id is computed
// later. Errors: ErrNoRoom, ErrTooLarge; ErrNoArena of InArena.
func (s *Store) Stage(ctx context.Context, size int64, where ...StageOption) (*Stage, error) {
	in := s.state.Near()
	if len(where) > 0 {
		m := s.state.Shared()
		if m == nil {
			return nil, ErrNoArena
		}
		in = []*residency.Level{m}
	}
	st, err := s.tryStage(ctx, size, in...)
	if err != nil {
		s.state.Count.Rejected()
	}
	return st, err
}

// tryStage is Stage in the first of some tiers that admits so many bytes, for those
// who may try again.
func (s *Store) tryStage(ctx context.Context, size int64, in ...*residency.Level) (*Stage, error) {
	var failed error
	for _, m := range in {
		slot, err := s.evict.Reserve(ctx, m, size, eviction.AnyBlock)
		if err == nil {
			return s.newStage(m, slot, size)
		}
		failed = err
		if !errors.Is(err, ErrTooLarge) {
			break
		}
	}
	return nil, failed
}

// fillable is memory that the process fills.
type fillable interface {
	Bytes() []byte
	Write(crc uint32, at int64, p []byte) (uint32, error)
	CRC(crc uint32, from, to int64) (uint32, error)
	Hash(h *block.Hasher, from, to int64) error
}

// buffer stands in for a slot whose memory the process can not address.
type buffer struct {
	tiers.Host
	free func() // gives the memory back
}

// into returns what is filled.
func (st *Stage) into() fillable {
	if st.buffer != nil {
		return st.buffer
	}
	return st.slot
}

// newStage begins a stage in a slot, of a request that is under way until it ends.
func (s *Store) newStage(m *residency.Level, slot tiers.Slot, size int64) (*Stage, error) {
	st := &Stage{store: s, mem: m, slot: slot, size: size}
	if slot.Bytes() == nil {
		bytes, free, err := s.state.Buffer(size)
		if err != nil {
			slot.Abort()
			return nil, s.state.RoomError(m, size, err)
		}
		st.buffer = &buffer{tiers.Host(bytes), free}
	}
	s.state.Activity.Begin()
	return st, nil
}

// Bytes is the room, exactly the size asked for, in tier memory if the process
// can address that.
func (st *Stage) Bytes() []byte { return st.into().Bytes() }

// Filled reports that n more bytes, after those before, are in place, and
// checksums them.
func (st *Stage) Filled(n int) {
	crc, err := st.into().CRC(st.crc, st.filled, st.filled+int64(n))
	st.failed = cmp.Or(st.failed, err)
	st.FilledAs(n, crc)
}

// FilledAs is Filled for bytes that are checksummed already: crc is the CRC32C
// of all bytes from the first on.
func (st *Stage) FilledAs(n int, crc uint32) {
	st.filled += int64(n)
	st.crc = crc
}

// Append copies p behind what is filled, checksummed on the way and, where it
// is long, past the CPU's caches.
func (st *Stage) Append(p []byte) {
	crc, err := st.into().Write(st.crc, st.filled, p)
	st.failed = cmp.Or(st.failed, err)
	st.FilledAs(len(p), crc)
}

// Commit publishes the staged block under e, whole and at once. All bytes must
// have been reported by Filled. ctx bounds what other ranks are asked. Errors:
// ErrCondition, ErrBadEntry, ErrNoRoom.
func (st *Stage) Commit(ctx context.Context, e Entry) error {
	if err := e.Check(); err != nil {
		st.Abort()
		return err
	}
	_, _, err := st.commit(ctx, e, BlockID{}, single)
	return err
}

// elsewhere reports whether other ranks have the name of a put that depends on
// it, and completes the entry with what they have of it.
func (s *Store) elsewhere(ctx context.Context, e *Entry) bool {
	s.here.locateParent(e)
	if e.When == Always && !e.KeepTTL {
		return false
	}
	copies := s.others.LocatedOne(ctx, e.Namespace, e.Key)
	if copies == nil {
		return false
	}
	if e.KeepTTL && !s.state.ContainsHere(e.Namespace, e.Key) {
		e.Expires = copies[0].Name.Expires
	}
	return true
}

// commit publishes the block under id, or under a provisional id when id is
// zero. dup: the bytes were stored already.
func (st *Stage) commit(ctx context.Context, e Entry, id BlockID, sc scope) (n *names.Name, dup bool, err error) {
	s := st.store
	if st.done {
		return nil, false, fmt.Errorf("%w: the stage is ended", ErrBadEntry)
	}
	defer st.Abort()
	if st.filled != st.size {
		return nil, false, fmt.Errorf("%w: %d of %d bytes are filled", ErrBadEntry, st.filled, st.size)
	}
	if st.buffer != nil && st.failed == nil {
		_, st.failed = st.slot.Write(0, 0, st.buffer.Bytes())
	}
	if st.failed != nil {
		return nil, false, s.state.RoomError(st.mem, st.size, st.failed)
	}
	elsewhere := s.elsewhere(ctx, &e)
	b := residency.NewBlock(block.Info{ID: id, Size: st.size, CRC: st.crc})
	b.Fingerprint, b.Generated = block.Fingerprint(e.Namespace, e.Key), e.Generated
	var below *directory.Segment
	if !id.IsZero() {
		below = s.state.Cold.Own(id)[0]
	}
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	n, dup, err = st.commitLocked(&e, b, elsewhere)
	refusedLocked(s, e.Namespace, e.Key, err)
	if below != nil && n != nil && !residency.BlockOf(n).Writing {
		s.state.Cold.RestLocked(residency.BlockOf(n), below)
	}
	sc.passLocked(&s.state.Requests, n)
	return n, dup, err
}

// commitLocked makes fresh, which is not stored yet, a block of the stage's bytes,
// unless another put of the same bytes was first. elsewhere: other ranks have the
// name.
func (st *Stage) commitLocked(e *Entry, fresh *residency.Block, elsewhere bool) (n *names.Name, dup bool, err error) {
	s := st.store
	if err := s.state.CheckOpenLocked(); err != nil {
		return nil, false, err
	}
	if !fresh.Info.ID.IsZero() {
		if b := s.state.Mu.Blocks[fresh.Info.ID]; b != nil {
			n, err = s.renameLocked(e, b, elsewhere)
			return n, true, err
		}
	}
	if err := s.allowedLocked(e, elsewhere); err != nil {
		return nil, false, err
	}
	if err := s.nameRoom.MakeRoomLocked(e.Namespace, e.Key); err != nil {
		s.state.Count.Stats.Rejected++
		return nil, false, err
	}
	left := s.state.Requests.BeginLocked()
	s.state.Requests.LookedLocked(e.Namespace, e.Key, &left)
	if !st.mem.Policy.Admit(s.state.Clock(), s.metaOfEntryLocked(e, fresh)) {
		s.state.Count.Stats.Rejected++
		return nil, false, fmt.Errorf("%w: %w of tier %s", ErrNoRoom, errNotAdmitted, st.mem.Stats.Name)
	}
	n, err = st.publishLocked(e, fresh)
	return n, false, err
}

// errNotAdmitted: what the tier has is worth more than the block.
var errNotAdmitted = errors.New("not admitted by the policy")

// metaOfEntryLocked is what a policy gets of a block that is put under e.
func (s *Store) metaOfEntryLocked(e *Entry, b *residency.Block) policy.Meta {
	m := policy.Meta{Fingerprint: b.Fingerprint, Size: b.Info.Size, Refs: 1, Prefix: e.Prefix}
	if e.Parent == "" {
		return m
	}
	if p := s.state.Mu.Names.Get(e.Namespace, e.Parent); p != nil && p.Block() != nil {
		m.Depth = p.Depth() + 1
	}
	return m
}

// publishLocked makes b, which is not stored yet, a block of the stage's bytes, under
// a provisional id if it has none.
func (st *Stage) publishLocked(e *Entry, b *residency.Block) (*names.Name, error) {
	s := st.store
	hashed := !b.Info.ID.IsZero()
	if !hashed {
		b.Info.ID = s.state.ProvisionalLocked()
	}
	st.given = true
	if err := st.slot.Commit(b.Info, nil); err != nil {
		s.state.Count.Stats.Rejected++
		return nil, s.state.RoomError(st.mem, st.size, err)
	}
	s.state.Mu.Blocks[b.Info.ID] = b
	s.state.Count.Stats.BytesStored += st.size
	s.state.EnterLocked(b, st.mem)
	n := s.here.bindLocked(e, b, s.state.Now())
	s.state.Count.PutLocked(n)
	if !hashed {
		s.state.Pending.Push(b)
	}
	s.state.NudgeCleanerLocked()
	return n, nil
}

// Abort gives the room back. After Commit or Abort it does nothing.
func (st *Stage) Abort() {
	if st.done {
		return
	}
	st.done = true
	if !st.given {
		st.slot.Abort()
	}
	if st.buffer != nil {
		st.buffer.free()
	}
	if !st.kept {
		st.store.state.Activity.End()
	}
}

// PutItem is one block of a PutBatch.
type PutItem struct {
	Entry Entry
	Data  []byte
}

// PutBatch stores blocks of one chain, head first, as one request of the
// eviction policy. Items stored before an error stay stored; their number is
// the length of the result.
func (s *Store) PutBatch(ctx context.Context, items []PutItem) ([]PutResult, error) {
	results := make([]PutResult, 0, len(items))
	stored := make([]*names.Name, 0, len(items))
	var failed error
	for _, it := range items {
		res, n, err := s.put(ctx, it.Entry, it.Data, nil, batched)
		if err != nil {
			failed = fmt.Errorf("block %d of %d: %w", len(results), len(items), err)
			break
		}
		results = append(results, res)
		stored = append(stored, n)
	}
	s.state.Requests.Stored(stored...)
	return results, failed
}

// CommitContent is Commit with the id computed at once, as Put does: bytes
// that are stored already get one more name, and the stage's copy of them is
// given back.
func (st *Stage) CommitContent(ctx context.Context, e Entry) (PutResult, error) {
	if err := e.Check(); err != nil {
		st.Abort()
		return PutResult{}, err
	}
	h := block.NewHasher(st.store.state.IDBits)
	st.failed = cmp.Or(st.failed, st.into().Hash(h, 0, st.size))
	id := h.ID()
	_, dup, err := st.commit(ctx, e, id, single)
	return PutResult{ID: id, Duplicate: dup}, err
}
