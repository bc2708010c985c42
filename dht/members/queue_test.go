package members

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestReaderRestsBetweenChanges: a reader that takes long is not called for each of many changes, and at once for one
// that comes alone.
func TestReaderRestsBetweenChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes, storm = 100 * time.Millisecond, 5 * time.Second
		q := newQueue(0)
		calls, seen := 0, 0
		var last time.Time
		done := make(chan struct{})
		go func() {
			defer close(done)
			q.drain(func(batch []Event) {
				last = time.Now()
				calls, seen = calls+1, seen+len(batch)
				time.Sleep(takes)
			})
		}()
		put := 0
		for began := time.Now(); time.Since(began) < storm; time.Sleep(10 * time.Millisecond) {
			q.put(Event{})
			put++
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if most := int(storm/(takes*(1+restTimes))) + 2; calls > most || calls < most/2 || seen != put {
			t.Errorf("called %d times for %d of %d changes, want about %d calls for all", calls, seen, put, most)
		}
		began := time.Now()
		q.put(Event{})
		time.Sleep(2 * gather)
		synctest.Wait()
		if after := last.Sub(began); after < 0 || after > gather {
			t.Errorf("one change is seen after %v, want %v", after, gather)
		}
		time.Sleep(takes)
		q.put(Event{})
		began = time.Now()
		q.close()
		<-done
		if waited := time.Since(began); seen != put+2 || waited > takes {
			t.Errorf("closed after %v, with %d of %d changes seen", waited, seen, put+2)
		}
	})
}
