package cascade

import (
	"context"
	"sync"
	"testing"
	"time"

	"cascadekv/dht/directory"
)

// TestCloseWaitsForWalks: the catalogue is not closed while another rank's question for all
// names is answered from it, and the answer ends with the store.
func TestCloseWaitsForWalks(t *testing.T) {
	_, r := spilledChain(t, 200)
	walking, release, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		var once sync.Once
		Local{r.Store}.Names(func(string, string) bool { return true }, func(st directory.Statement) {
			if st.Memory == nil { // of the catalogue
				once.Do(func() {
					close(walking)
					<-release
				})
			}
		})
	}()
	<-walking
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if err := r.Store.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	eventually(t, "the store is being closed", func() bool {
		r.state.Mu.Lock()
		defer r.state.Mu.Unlock()
		return r.state.Mu.Closed
	})
	select {
	case <-closed:
		t.Error("the store is closed while its names are listed")
	case <-time.After(50 * time.Millisecond): // as long as a close of so little takes
	}
	close(release)
	<-closed
	<-ended
	Local{r.Store}.Names(func(string, string) bool { return true }, func(directory.Statement) { t.Error("a closed store lists names") })
}
