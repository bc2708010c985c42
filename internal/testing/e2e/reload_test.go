package e2e

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"cascadekv/internal/resp"
)

// TestReload changes the configuration of a running rank with SIGHUP: what may
// change does, and what may not leaves everything as it was.
func TestReload(t *testing.T) {
	p := newPlace(t, "64MiB")
	config, password := filepath.Join(p.dir, "cascade.toml"), filepath.Join(p.dir, "password")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(config, "rank = 3\n")
	write(password, "open sesame\n")
	admin := freePort(t)
	r := start(t, p, "--config", config, "--admin-listen", admin)
	before := r.dial(t)
	if err := before.Set("k", []byte("v")); err != nil {
		t.Fatal(err)
	}

	write(config, "rank = 3\npassword_file = \""+password+"\"\n")
	r.reload(t, "reloaded")
	if _, err := r.dial(t).Do("PING"); !isCode(err, "NOAUTH") {
		t.Errorf("a new connection without the password: %v, want NOAUTH", err)
	}
	c := r.dial(t)
	if _, err := c.Do("AUTH", "open sesame"); err != nil {
		t.Error(err)
	}
	wantValue(t, c, "k", "v")
	ended := func(what string, c *resp.Client) {
		t.Helper()
		until(t, "the end of a connection "+what, func() bool {
			_, err := c.Do("PING")
			return err != nil && !isCode(err, "NOAUTH")
		})
	}
	ended("from before there was a password", before)

	write(password, "open barley\n")
	r.reload(t, "reloaded")
	ended("of the old password", c)
	c = r.dial(t)
	if _, err := c.Do("AUTH", "open sesame"); !isCode(err, "WRONGPASS") {
		t.Errorf("the old password: %v, want WRONGPASS", err)
	}
	if _, err := c.Do("AUTH", "open barley"); err != nil {
		t.Error(err)
	}
	wantValue(t, c, "k", "v")
	r.reload(t, "reloaded") // the same password ends nothing
	wantValue(t, c, "k", "v")
	if reloads := lastReload(t, admin); reloads != "1" {
		t.Errorf("the metric of the last reload says %q, want 1", reloads)
	}

	for name, c := range map[string]struct {
		text  string
		words []string
	}{
		"immutable key": {"rank = 4\npassword_file = \"" + password + "\"\n", []string{"rank", "cannot change"}},
		"unknown key":   {"rank = 3\nlees = \"1m\"\n", []string{config + ":2", "lees", "lease"}},
		"bad value":     {"rank = 3\nlease = \"for ever\"\n", []string{config, "lease", "for ever"}},
	} {
		t.Run(name, func(t *testing.T) {
			write(config, c.text)
			wantWords(t, r.reload(t, "reload refused, nothing changed"), c.words...)
			if reloads := lastReload(t, admin); reloads != "0" {
				t.Errorf("the metric of the last reload says %q, want 0", reloads)
			}
			if _, err := r.dial(t).Do("PING"); !isCode(err, "NOAUTH") {
				t.Errorf("a new connection without the password: %v, want NOAUTH as before", err)
			}
		})
	}
}

// reload sends SIGHUP, waits for what the rank says to it and returns that.
func (r *rank) reload(t *testing.T, word string) string {
	t.Helper()
	old := len(r.stderr.String())
	r.signal(t, syscall.SIGHUP)
	until(t, "word of the reload", func() bool { return strings.Contains(r.stderr.String()[old:], word) })
	return r.stderr.String()[old:]
}

func isCode(err error, code string) bool {
	var server *resp.ServerError
	return errors.As(err, &server) && server.Code() == code
}

func lastReload(t *testing.T, admin string) string {
	t.Helper()
	answer, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, "cascade_config_last_reload_successful "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
