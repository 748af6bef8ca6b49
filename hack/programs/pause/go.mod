module octavo.dev/hack/pause

go 1.24
