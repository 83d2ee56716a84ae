"""A stand-in for the Hugging Face hub on loopback: repositories are dictionaries of file names to bytes."""

import hashlib
import http.server
import json
import threading
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    def __init__(self):
        self.repositories = {}
        self.failures = {}
        self.requests = []
        self.cut_at = {}
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hub.answer(self)

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, *arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()

    def stop(self):
        self.server.shutdown()
        self.thread.join(10)
        self.server.server_close()

    def fetched(self):
        """Names of the files that were sent since the last look."""
        names = [path.split("/resolve/")[1].split("/", 1)[1] for method, path in self.requests if method == "GET" and "/resolve/" in path]
        self.requests.clear()
        return sorted(names)

    def answer(self, request):
        path = urllib.parse.unquote(request.path.split("?")[0])
        self.requests.append((request.command, path))
        parts = path.strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        repository = "/".join(parts[2:4] if api else parts[:2])
        if repository in self.failures:
            status, code = self.failures[repository]
            return self.send(request, status, b"", {"X-Error-Code": code} if code else {})
        files = self.repositories.get(repository)
        if files is None:
            return self.send(request, 404, b"", {"X-Error-Code": "RepoNotFound"})
        revision = parts[5] if len(parts) > 5 and parts[4] in ("revision", "tree") else "main"
        if revision not in ("main", COMMIT, "v1"):
            return self.send(request, 404, b"", {"X-Error-Code": "RevisionNotFound"})
        if api:
            return self.send(request, 200, self.listing(repository, files, tree="tree" in parts[4:5]), {"Content-Type": "application/json"})
        name = "/".join(parts[4:])
        if name not in files:
            return self.send(request, 404, b"", {"X-Error-Code": "EntryNotFound"})
        etag = hashlib.sha256(files[name]).hexdigest()
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
        return self.send(request, 200, files[name], headers, cut=self.cut_at.get(name))

    def listing(self, repository, files, tree):
        if tree:
            return json.dumps([{"type": "file", "path": name, "size": len(data), "oid": "0" * 40} for name, data in files.items()]).encode()
        siblings = [{"rfilename": name, "size": len(data), "blobId": "0" * 40} for name, data in files.items()]
        return json.dumps({"id": repository, "modelId": repository, "sha": COMMIT, "siblings": siblings, "tags": []}).encode()

    def send(self, request, status, body, headers, cut=None):
        """Sends `body`; with `cut` only so many bytes of it, and then hangs up."""
        request.send_response(status)
        for key, value in headers.items():
            request.send_header(key, value)
        request.send_header("Content-Length", str(len(body)))
        if cut is not None:
            request.close_connection = True
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body[:cut])
