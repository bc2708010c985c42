package pool

import "testing"

// One job at a time is admitted, and none after the one that ends without more.
func TestAlone(t *testing.T) {
	var a Alone
	for _, more := range []bool{true, true, false} {
		if a.Busy() || !a.Begin() || a.Begin() || !a.Busy() {
			t.Fatal("not one job was admitted")
		}
		a.End(more)
	}
	if a.Begin() {
		t.Error("a job was admitted after the last")
	}
}
