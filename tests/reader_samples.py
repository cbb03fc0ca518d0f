"""Small files that several tests of the readers start from."""

from __future__ import annotations

STG = "3\n0 0 0\n1 4 1 0\n2 5 1 0\n3 6 2 1 2\n4 0 1 3\n# a comment\n"
"""Three tasks and two dummies."""

OLD = {
    "name": "w",
    "schemaVersion": "1.3",
    "workflow": {
        "tasks": [
            {
                "name": "split_1",
                "id": "1",
                "runtime": 2.5,
                "parents": [],
                "children": ["blast_2"],
                "files": [{"link": "output", "name": "f", "size": 100}],
            },
            {
                "name": "blast_2",
                "id": "2",
                "runtime": 1,
                "parents": ["split_1"],
                "children": [],
                "files": [
                    {"link": "input", "name": "f", "size": 100},
                    {"link": "input", "name": "db", "size": 9},
                ],
            },
            {
                "name": "cat_3",
                "id": "3",
                "runtime": 1e-12,
                "parents": ["blast_2"],
                "children": [],
                "files": [],
            },
        ]
    },
}
NEW = {
    "name": "w",
    "schemaVersion": "1.5",
    "workflow": {
        "specification": {
            "tasks": [
                {
                    "name": "split",
                    "id": "1",
                    "parents": [],
                    "children": ["2"],
                    "inputFiles": [],
                    "outputFiles": ["f"],
                },
                {
                    "name": "blast",
                    "id": "2",
                    "parents": ["1"],
                    "children": ["3"],
                    "inputFiles": ["f", "db"],
                    "outputFiles": [],
                },
                {"name": "cat", "id": "3", "parents": ["2"], "children": []},
            ],
            "files": [{"id": "f", "sizeInBytes": 100}, {"id": "db", "sizeInBytes": 9}],
        },
        "execution": {
            "tasks": [
                {"id": "1", "runtimeInSeconds": 2.5},
                {"id": "2", "runtimeInSeconds": 1},
                {"id": "3", "runtimeInSeconds": 1e-12},
            ]
        },
    },
}

PARTITION = {
    "maxSizePerFPGA": 1000.0,
    "maxFPGAs": 2,
    "maxCPUs": 1,
    "nodes": [
        {
            "id": 7,
            "supportedOnFpga": 1,
            "cpuLatency": 2.0,
            "fpgaLatency": 0.5,
            "isBackwardNode": 0,
            "size": 9.0,
            "colorClass": 5,
        },
        {
            "id": -3,
            "supportedOnFpga": False,
            "cpuLatency": 1e-9,
            "fpgaLatency": 0.1,
            "isBackwardNode": False,
            "size": 0,
        },
        {
            "id": 90,
            "supportedOnFpga": True,
            "cpuLatency": 0,
            "fpgaLatency": 0,
            "isBackwardNode": True,
            "size": 1,
            "colorClass": 5,
        },
    ],
    "edges": [
        {"sourceId": 7, "destId": -3, "cost": 0.25},
        {"sourceId": 7, "destId": 90, "cost": 0.2500000001},
    ],
}
