// Kstatus reads one Kubernetes object as JSON and says what tools built on the
// kstatus library (Flux, kpt, cli-utils) think of it.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "kstatus: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	var content map[string]any
	if err := json.NewDecoder(os.Stdin).Decode(&content); err != nil {
		return fmt.Errorf("no JSON object on standard input: %w", err)
	}
	result, err := status.Compute(&unstructured.Unstructured{Object: content})
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]string{
		"status":  result.Status.String(),
		"message": result.Message,
	})
}
