#!/usr/bin/env python3
"""Runs llama.cpp's own HTTP server, the C++ one that the xllamacpp wheel carries.

    llamacpp_server.py MODEL.gguf PORT [--slots N] [--context N] [--name NAME] [--no-metrics]
                       [--embeddings]

On 127.0.0.1 until SIGTERM or SIGINT, which end it at once, streams and all.
"""
import argparse
import os
import signal

import xllamacpp


def parameters(options):
    p = xllamacpp.CommonParams()
    p.model.path = options.model
    p.model_alias = {options.name}
    p.hostnames = ["127.0.0.1"]
    p.port = options.port
    p.n_parallel = options.slots
    p.n_ctx = options.context
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
    p.endpoint_metrics = not options.no_metrics
    p.endpoint_slots = True
    if options.embeddings:
        p.embedding = True
        p.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    p.warmup = False
    return p


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("port", type=int)
    parser.add_argument("--slots", type=int, default=2, help="requests served at once")
    parser.add_argument("--context", type=int, default=65536, help="of all slots together")
    parser.add_argument("--name", default="tiny", help="what /v1/models calls it")
    parser.add_argument("--no-metrics", action="store_true")
    parser.add_argument("--embeddings", action="store_true")
    options = parser.parse_args()
    # Before the server has threads, so that all of them inherit it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    server = xllamacpp.Server(parameters(options))
    print("listening on", server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    os._exit(0)


if __name__ == "__main__":
    main()
