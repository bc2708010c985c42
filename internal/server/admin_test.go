package server

import (
	"net/http/httptest"
	"testing"
)

// TestHealthTellsOfTheEnd: who balances load sends no more clients to a rank that
// drains.
func TestHealthTellsOfTheEnd(t *testing.T) {
	r := newRig(t, 8<<20)
	handler := r.srv.http.Handler()
	for _, c := range []struct {
		ending bool
		status int
		says   string
	}{{false, 200, "ok\n"}, {true, 503, "draining\n"}, {false, 200, "ok\n"}} {
		r.srv.mu.Lock()
		r.srv.ending = c.ending
		r.srv.mu.Unlock()
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", "/healthz", nil))
		if w.Code != c.status || w.Body.String() != c.says {
			t.Errorf("ending %v: %d %q, want %d %q", c.ending, w.Code, w.Body, c.status, c.says)
		}
	}
}
