package dht

import (
	"fmt"
	"slices"
	"testing"

	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
	"cascadekv/dht/fabric/sim"
	"cascadekv/internal/block"
)

// claimOf is a claim of some bytes.
func claimOf(i int, version uint64) directory.Statement {
	p := []byte(fmt.Sprint("content ", i))
	s := directory.Statement{Info: block.Info{ID: block.Sum(block.Bits128, p), Size: int64(len(p)), CRC: block.CRC(p)}, Version: version, Memory: &directory.Memory{}}
	s.Name = block.Name{Namespace: directory.Contents, Key: directory.ContentKey(s.Info.ID), Seq: directory.ContentSeq}
	return s
}

// TestClaim: all ranks see one order of claims, whoever is the home, with two messages
// for each home, but that those which may not live come last; ranks that died are left out, and a home that is silent
// is no answer.
func TestClaim(t *testing.T) {
	inBubble(t, 4, sim.Options{}, func(t *testing.T, r *rig) {
		const n = 40
		claim := func(rank fabric.Rank, version uint64) (all [][]fabric.Rank) {
			var list []directory.Statement
			for i := range n {
				list = append(list, claimOf(i, version))
			}
			for _, copies := range r.nodes[rank].Claim(t.Context(), list) {
				var owners []fabric.Rank
				for _, c := range copies {
					owners = append(owners, c.Owner)
				}
				all = append(all, owners)
			}
			return all
		}
		each := func(got [][]fabric.Rank, want ...fabric.Rank) {
			t.Helper()
			for i, owners := range got {
				if !slices.Equal(owners, want) {
					t.Fatalf("content %d: %v, want %v", i, owners, want)
				}
			}
		}
		before := r.messages(2)
		each(claim(2, 1), 2)
		if sent := r.messages(2) - before; sent != 6 {
			t.Errorf("%d messages to 3 homes, want 6", sent)
		}
		each(claim(0, 1), 2, 0)
		each(claim(2, 2), 2, 0)
		each(claim(3, 1), 2, 0, 3)
		doubted := r.members(fabric.Suspect, 2)
		r.nodes[3].SetMembers(doubted...)
		for i, owners := range claim(3, 2) {
			if owners != nil && !slices.Equal(owners, []fabric.Rank{0, 3, 2}) { // its home may be the one that is not asked
				t.Fatalf("content %d of one that may not live: %v", i, owners)
			}
		}
		r.nodes[3].SetMembers(r.members(fabric.Alive, 2)...)
		r.die(2)
		r.settled()
		for i, owners := range claim(0, 2) {
			if len(owners) == 0 || slices.Contains(owners, 2) || !slices.Contains(owners, 0) {
				t.Fatalf("content %d after a death: %v", i, owners)
			}
		}
	})
}

// TestEntrust: what the owner refuses comes back by its place; names go in parts.
func TestEntrust(t *testing.T) {
	inBubble(t, 2, sim.Options{}, func(t *testing.T, r *rig) {
		var list []directory.Statement
		for i := range entrustNames + 50 {
			s := claimOf(i, 0)
			s.Name = block.Name{Namespace: "ns", Key: fmt.Sprint(i), Seq: 7}
			s.Memory = nil
			list = append(list, s)
		}
		for _, i := range []int{3, entrustNames + 7} {
			r.shelf[1].put(list[i].Name.Key, 1, bytesOf(list[i].Name.Key, 1), false)
		}
		refused, err := r.nodes[0].Entrust(t.Context(), 1, list)
		if err != nil || !slices.Equal(refused, []int{3, entrustNames + 7}) {
			t.Errorf("refused: %v, %v", refused, err)
		}
		if got := r.shelf[1].entrusted; len(got) != len(list)-2 || got[0].Name != list[0].Name || got[0].Info != list[0].Info {
			t.Errorf("%d names were entrusted, want %d", len(got), len(list)-2)
		}
		given := list[:1]
		for _, version := range []uint64{0, 9} { // the least sequence number of a record goes with what is given up
			given[0].Version, r.shelf[1].entrusted = version, nil
			if _, err := r.nodes[0].Entrust(t.Context(), 1, given); err != nil {
				t.Error(err)
			}
			if got := r.shelf[1].entrusted; len(got) != 1 || got[0].Version != version {
				t.Errorf("entrusted: %+v, want version %d", got, version)
			}
		}
		r.die(1)
		if _, err := r.nodes[0].Entrust(t.Context(), 1, list); err == nil {
			t.Error("a rank that is dead keeps names")
		}
	})
}

// TestNamesOf: an owner lists its names of some bytes, with one message; a question about
// anything else is refused, and a rank that is dead does not answer.
func TestNamesOf(t *testing.T) {
	inBubble(t, 2, sim.Options{}, func(t *testing.T, r *rig) {
		p := bytesOf("a", 1)
		for _, key := range []string{"a", "b"} {
			r.shelf[1].put(key, 1, p, false)
		}
		r.shelf[1].put("c", 1, bytesOf("c", 1), false)
		r.settled()
		before := r.messages(0)
		names, err := r.nodes[0].NamesOf(t.Context(), 1, block.Sum(block.Bits128, p))
		var keys []string
		for _, n := range names {
			keys = append(keys, n.Key)
		}
		slices.Sort(keys)
		if err != nil || !slices.Equal(keys, []string{"a", "b"}) {
			t.Errorf("names: %q, %v", keys, err)
		}
		if n := r.messages(0) - before; n != 1 {
			t.Errorf("%d messages, want 1", n)
		}
		key := directory.ContentKey(block.Sum(block.Bits128, p))
		for _, bad := range []keysMessage{{"ns", []string{key}}, {directory.Contents, []string{"a"}}, {directory.Contents, []string{key, key}}, {directory.Contents, nil}} {
			if _, err := r.nodes[0].call(t.Context(), 1, kindNames, &bad); err == nil {
				t.Errorf("%+v is answered", bad)
			}
		}
		r.die(1)
		if _, err := r.nodes[0].NamesOf(t.Context(), 1, block.Sum(block.Bits128, p)); err == nil {
			t.Error("a dead rank answers")
		}
	})
}
