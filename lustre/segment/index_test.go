package segment

import (
	"testing"

	"cascadekv/internal/block"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/trust"
)

// TestIndexKeeps: a file without blocks stays for as long as what it says of names
// counts: a name of a block, or a withdrawal that hides an older record.
func TestIndexKeeps(t *testing.T) {
	x := newIndex(trust.None("/dir"), 0, false, func() {})
	x.mu.Lock()
	defer x.mu.Unlock()
	add := func() *file {
		f := newFile(true)
		f.done = true
		x.files[f] = struct{}{}
		return f
	}
	older, newer := add(), add()
	info := block.Info{ID: block.Sum(block.Bits128, []byte("a")), Size: 1, CRC: block.CRC([]byte("a"))}
	name := block.Name{Namespace: "ns", Key: "a", Seq: 5}
	if !x.indexLocked(older, info, format.Plain(info), 4096) || x.indexLocked(newer, info, format.Plain(info), 4096) {
		t.Error("the first copy of a block does not stay")
	}
	x.noteLocked(older, format.Record{ID: info.ID, Name: name}, true)
	if !x.neededLocked(older) || x.emptyLocked() != newer {
		t.Error("a file with a live name, or one with nothing, is judged wrong")
	}
	name.Seq = 7
	x.noteLocked(newer, format.Record{Name: name, Dropped: true}, true)
	if !x.neededLocked(newer) || x.neededLocked(older) {
		t.Error("a withdrawal does not hide the older record")
	}
	loc, err := x.findLocked(info.ID)
	if err != nil {
		t.Fatal(err)
	}
	x.forgetLocked(loc)
	if x.emptyLocked() != older || x.payload != 0 || x.stored != 0 {
		t.Errorf("%d bytes are left of no block", x.payload)
	}
	if drops := x.withdrawRecordsLocked(older); len(drops) != 0 {
		t.Errorf("records that count for nothing are withdrawn: %+v", drops)
	}
	if x.neededLocked(newer) {
		t.Error("a withdrawal stays when nothing is left that it hides")
	}
	x.late["/dir/rank000-0/agg"] = struct{}{}
	if !x.neededLocked(newer) {
		t.Error("a withdrawal goes while a file could not be read")
	}
}
