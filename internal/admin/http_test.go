package admin

import (
	"net/http/httptest"
	"strings"
	"testing"
)

// TestHealthOfTheEnd: who balances load sends no more clients to a rank that drains.
func TestHealthOfTheEnd(t *testing.T) {
	ending := false
	handler := New(Options{Draining: func() bool { return ending }}).Handler()
	for _, c := range []struct {
		ending bool
		status int
		body   string
	}{{false, 200, "ok\n"}, {true, 503, "draining\n"}, {false, 200, "ok\n"}} {
		ending = c.ending
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", "/healthz", nil))
		if w.Code != c.status || w.Body.String() != c.body {
			t.Errorf("ending %v: %d %q, want %d %q", c.ending, w.Code, w.Body, c.status, c.body)
		}
	}
}

// TestFiguresOfAPlainRank: every metric of a rank without peers, catalogue and tiers
// comes from the snapshot and the counters, and INFO has its sections.
func TestFiguresOfAPlainRank(t *testing.T) {
	s := Snapshot{Version: "v", Commands: 12, Polled: 8, ZeroCopy: 7, Held: Held{Views: 3}, InFlight: InFlight{Stalled: 4}}
	n := Counters{Accepted: 5, AuthFailures: 6, ReloadOK: true, Stored: Moved{Blocks: 8, Bytes: 9}}
	s.Losses = map[string]map[string]uint64{"segment": {"corrupt": 3}}
	w := httptest.NewRecorder()
	New(Options{Snapshot: func() Snapshot { return s }, Counters: func() Counters { return n }}).Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, line := range []string{
		"commands_total 12", "commands_polled_total 8", "sent_by_reference_bytes_total 7", "held_views 3", "stalled_bytes 4", "connections_accepted_total 5", "auth_failures_total 6",
		"config_last_reload_successful 1", "region_stored_total 8", "region_stored_bytes_total 9",
		`losses_total{reason="corrupt",step="segment"} 3`,
	} {
		if !strings.Contains(w.Body.String(), "\ncascade_"+line+"\n") {
			t.Errorf("/metrics has no cascade_%s", line)
		}
	}
	text := Info(s, Redis{MaxClients: 10}, map[string]bool{"clients": true, "server": true})
	if !strings.HasPrefix(text, "# Server\r\n") || !strings.Contains(text, "\r\n\r\n# Clients\r\nconnected_clients:0\r\nmaxclients:10\r\n") || strings.Contains(text, "# Memory") {
		t.Errorf("INFO: %q", text)
	}
}
