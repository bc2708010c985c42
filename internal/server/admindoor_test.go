package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/testing/testuser"
)

// httpGet sends one request on a connection and returns the status and the body.
func httpGet(t testing.TB, nc net.Conn, path string) (int, string) {
	t.Helper()
	status, body, err := httpTry(nc, path)
	if err != nil {
		t.Fatal(err)
	}
	return status, body
}

func httpTry(nc net.Conn, path string) (int, string, error) {
	_ = nc.SetDeadline(time.Now().Add(20 * time.Second))
	fmt.Fprintf(nc, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path)
	answer, err := http.ReadResponse(bufio.NewReader(nc), nil)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body), err
}

// TestAdminPortIsForItsUsers: what the HTTP side shows is for those who may use the
// rank, however they ask, and others do not keep them from it.
func TestAdminPortIsForItsUsers(t *testing.T) {
	r := newRig(t, 8<<20, func(o *Options) { o.AllowUIDs = []int{testuser.Stranger - 1}; o.Limits.Password = "x" })
	addr := r.srv.AdminAddr().String()
	for range 48 { // that neither ask nor read
		testuser.Dial(t, testuser.Stranger, net.Dialer{}, "tcp", addr)
	}
	for uid, want := range map[int]int{testuser.Stranger: 403, testuser.Stranger - 1: 200, os.Geteuid(): 200} {
		for _, path := range []string{"/metrics", "/healthz", "/stats", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=1"} {
			var status int
			var body string
			eventually(t, "an answer: room among those that are told why comes again", func() bool {
				var err error
				status, body, err = httpTry(testuser.Dial(t, uid, net.Dialer{}, "tcp", addr), path)
				return err == nil || uid != testuser.Stranger
			})
			if status != want || want == 403 && !strings.Contains(body, "allow_uids") {
				t.Errorf("user %d: %s: %d %.100s", uid, path, status, body)
			}
		}
	}
}

// TestAdminOnAUnixSocket: the HTTP side may be a file with the mode of the socket of
// clients, which is gone with the rank.
func TestAdminOnAUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "http")
	r := newRig(t, 8<<20, func(o *Options) { o.Admin = path })
	if m := modeOf(t, path); m != 0o600 {
		t.Errorf("mode %#o", m)
	}
	nc, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if status, body := httpGet(t, nc, "/stats"); status != 200 || !strings.Contains(body, "{") {
		t.Errorf("%d %.100s", status, body)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := r.srv.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the file is left: %v", err)
	}
}
