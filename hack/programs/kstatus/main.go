// Kstatus reads one Kubernetes object as JSON and says what tools built on the
// kstatus library (Flux, kpt, cli-utils) think of it.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

type verdict struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "kstatus: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	content, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	var object unstructured.Unstructured
	if err := object.UnmarshalJSON(content); err != nil {
		return fmt.Errorf("no Kubernetes object as JSON on standard input: %w", err)
	}
	result, err := status.Compute(&object)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(verdict{result.Status.String(), result.Message})
}
