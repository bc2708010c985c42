package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"cascadekv/internal/cli"
	"cascadekv/internal/units"
)

// TestEngineConfig has a shell read what is printed, and compares the words it
// finds with the JSON form.
func TestEngineConfig(t *testing.T) {
	const socket = "/run/it's cascade.sock"
	for engine, class := range map[string]string{"sglang": "CascadeHiCache", "vllm": "CascadeTier", "lmcache": "CascadeL2Adapter"} {
		t.Run(engine, func(t *testing.T) {
			var e engineConfig
			got := cascadeCommand("", nil, "engine-config", engine, "--socket", socket, "--json")
			if got.status != cli.OK || json.Unmarshal([]byte(got.out), &e) != nil || e.Engine != engine {
				t.Fatalf("%+v", got)
			}
			config := e.Args[len(e.Args)-1]
			if !json.Valid([]byte(config)) || !strings.Contains(config, class) || !strings.Contains(config, socket) {
				t.Errorf("the command line ends in %s", config)
			}
			script := cascadeCommand("", nil, "engine-config", engine, "--socket", socket).out
			command, _, _ := strings.Cut(script, "\n\n")
			stub := strings.Fields(commandOf(t, command))[0] + `() { printf '%s\0' "$@"; }` + "\n"
			words, err := exec.Command("sh", "-c", stub+command).Output()
			if err != nil {
				t.Fatalf("%v: %s", err, command)
			}
			said := strings.Split(strings.TrimSuffix(string(words), "\x00"), "\x00")
			if n := len(said) - len(e.Args); n < 0 || !slices.Equal(said[n:], e.Args) {
				t.Errorf("a shell reads %q, want to end in %q", said, e.Args)
			}
		})
	}
}

// commandOf is the line of a script that is neither a comment nor an export.
func commandOf(t *testing.T, script string) string {
	for line := range strings.Lines(script) {
		if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "export ") {
			return line
		}
	}
	t.Fatalf("no command in %s", script)
	return ""
}

// TestEngineConfigIsThatOfTheDocuments compares it with what docs/ tells to
// paste.
func TestEngineConfigIsThatOfTheDocuments(t *testing.T) {
	object := regexp.MustCompile(`(?s)(?:config|adapter) '(\{\n.*?\})'\n`)
	for engine := range engines {
		text, err := os.ReadFile("../../docs/" + engine + ".md")
		if err != nil {
			t.Fatal(err)
		}
		found := object.FindSubmatch(text)
		if found == nil {
			t.Fatalf("docs/%s.md has no configuration to paste", engine)
		}
		var want, got any
		said := strings.ReplaceAll(string(found[1]), "'$S'", "/tmp/cascade-0/rank0.sock")
		if err := json.Unmarshal([]byte(said), &want); err != nil {
			t.Fatalf("docs/%s.md: %v: %s", engine, err, said)
		}
		e := engines[engine](engineOptions{socket: "/tmp/cascade-0/rank0.sock", pageSize: 64, hostPool: 8 * units.GiB})
		if err := json.Unmarshal([]byte(e.Args[len(e.Args)-1]), &got); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: engine-config says %v, the document %v", engine, got, want)
		}
		for _, arg := range e.Args[:len(e.Args)-1] {
			if !strings.Contains(string(text), arg) {
				t.Errorf("docs/%s.md does not have %s", engine, arg)
			}
		}
	}
}

// TestEngineConfigNamesTrustedUsers: an engine gets the users that the
// configuration trusts.
func TestEngineConfigNamesTrustedUsers(t *testing.T) {
	for engine := range engines {
		got := cascadeCommand("", []string{"CASCADE_SERVER_UIDS=1001,1002"}, "engine-config", engine)
		if got.status != cli.OK || !strings.Contains(got.out, "export CASCADE_SERVER_UIDS=1001,1002\n") {
			t.Errorf("%s: %+v", engine, got)
		}
		if got := cascadeCommand("", nil, "engine-config", engine); strings.Contains(got.out, "export CASCADE_SERVER_UIDS") || !strings.Contains(got.out, "server_uids") {
			t.Errorf("%s, without any: %+v", engine, got)
		}
	}
}

// TestEngineConfigRefuses says what to do about it.
func TestEngineConfigRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"choose sglang, vllm or lmcache": {"engine-config", "tgi"},
		"give --socket PATH":             {"engine-config", "vllm", "--socket", "127.0.0.1:6379"},
	} {
		if got := cascadeCommand("", nil, args...); got.status != cli.Usage || !strings.Contains(got.err, want) {
			t.Errorf("%v: %+v", args, got)
		}
	}
}
